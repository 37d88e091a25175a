package io.lockstep.checkpoint;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * A site's checkpoint on the local disk, without child processes.
 *
 * Where Hadoop finds no native library it starts a process (chmod, readlink) for nearly every file that it creates.
 * That was most of the pause between two real-time batches. A file appears whole, under its name, or not at all.
 */
public final class LocalFiles implements CheckpointFileManager {
    private static final int BUFFER = 1 << 16;

    private final Path root;
    private final RawLocalFileSystem files = new RawLocalFileSystem();

    public LocalFiles(Path root, Configuration configuration) throws IOException {
        String scheme = root.toUri().getScheme();
        if (scheme != null && !scheme.equals("file")) {
            throw new IOException("a site keeps its checkpoint on the local disk, not at " + root);
        }
        this.root = root;
        files.initialize(files.getUri(), configuration);
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        try {
            return new Atomic(file(path), overwrite);
        } catch (IOException error) {
            throw unchecked(error);
        }
    }

    /** A whole file at once, in place of one that may be there. */
    public void write(Path path, byte[] content) throws IOException {
        CancellableFSDataOutputStream out = createAtomic(path, true);
        try {
            out.write(content);
        } catch (IOException error) {
            out.cancel();
            throw error;
        }
        out.close();
    }

    @Override
    public FSDataInputStream open(Path path) {
        try {
            return files.open(path);
        } catch (IOException error) {
            throw unchecked(error);
        }
    }

    @Override
    public FileStatus[] list(Path path, PathFilter filter) {
        try {
            return Arrays.stream(files.listStatus(path)).filter(one -> filter.accept(one.getPath())).toArray(FileStatus[]::new);
        } catch (IOException error) {
            throw unchecked(error);
        }
    }

    @Override
    public void mkdirs(Path path) {
        try {
            Files.createDirectories(file(path));
        } catch (IOException error) {
            throw unchecked(error);
        }
    }

    @Override
    public boolean exists(Path path) {
        return Files.exists(file(path));
    }

    @Override
    public void delete(Path path) {
        try {
            files.delete(path, true);
        } catch (java.io.FileNotFoundException gone) {
            // what is gone needs no deleting
        } catch (IOException error) {
            throw unchecked(error);
        }
    }

    @Override
    public boolean isLocal() {
        return true;
    }

    @Override
    public Path createCheckpointDirectory() {
        mkdirs(root);
        return files.makeQualified(root);
    }

    private java.nio.file.Path file(Path path) {
        return files.pathToFile(path).toPath();
    }

    /** Scala knows no checked exceptions: Spark expects an IOException as such. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> RuntimeException unchecked(Throwable error) throws E {
        throw (E) error;
    }

    /** Written beside its place and moved there when it is closed. */
    private static final class Atomic extends CancellableFSDataOutputStream {
        private final java.nio.file.Path file;
        private final java.nio.file.Path draft;
        private final boolean overwrite;
        private boolean done;

        Atomic(java.nio.file.Path file, boolean overwrite) throws IOException {
            this(file, file.resolveSibling("." + file.getFileName() + "." + UUID.randomUUID() + ".tmp"), overwrite);
        }

        private Atomic(java.nio.file.Path file, java.nio.file.Path draft, boolean overwrite) throws IOException {
            super(start(draft));
            this.file = file;
            this.draft = draft;
            this.overwrite = overwrite;
        }

        private static OutputStream start(java.nio.file.Path draft) throws IOException {
            Files.createDirectories(draft.getParent());
            return new BufferedOutputStream(Files.newOutputStream(draft), BUFFER);
        }

        @Override
        public synchronized void close() throws IOException {
            if (done) {
                return;
            }
            done = true;
            try {
                super.close();
                if (overwrite) {
                    Files.move(draft, file, StandardCopyOption.ATOMIC_MOVE);
                } else {
                    Files.createLink(file, draft); // unlike a move, it never replaces
                }
            } catch (FileAlreadyExistsException taken) {
                throw new org.apache.hadoop.fs.FileAlreadyExistsException(file + " already exists");
            } finally {
                Files.deleteIfExists(draft);
            }
        }

        @Override
        public synchronized void cancel() {
            if (done) {
                return;
            }
            done = true;
            try {
                super.close();
                Files.deleteIfExists(draft);
            } catch (IOException error) {
                throw unchecked(error);
            }
        }
    }
}
