package io.lockstep.checkpoint;

import io.lockstep.Vectors;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

public final class LocalFilesTest {
    private LocalFilesTest() {}

    public static void all() throws IOException {
        java.nio.file.Path folder = Files.createTempDirectory("lockstep-files");
        LocalFiles files = new LocalFiles(new Path(folder.toUri()), new Configuration(false));
        try {
            files(files, new Path(folder.toUri().toString(), "a/b"));
        } finally {
            files.delete(new Path(folder.toUri()));
        }
        Vectors.equal("deleted with all below it", false, Files.exists(folder));
        refuses("hdfs", () -> new LocalFiles(new Path("hdfs://name/checkpoint"), new Configuration(false)), IOException.class);
    }

    private static void files(LocalFiles files, Path path) throws IOException {
        CancellableFSDataOutputStream out = files.createAtomic(path, false);
        out.write("first".getBytes());
        Vectors.equal("invisible before it is closed", false, files.exists(path));
        out.close();
        out.close();
        Vectors.equal("content", "first", read(files, path));

        CancellableFSDataOutputStream second = files.createAtomic(path, false);
        second.write("second".getBytes());
        refuses("a second file of one name", second::close, FileAlreadyExistsException.class);
        Vectors.equal("the first one stays", "first", read(files, path));

        CancellableFSDataOutputStream third = files.createAtomic(path, true);
        third.write("third".getBytes());
        third.close();
        Vectors.equal("replaced as asked", "third", read(files, path));

        CancellableFSDataOutputStream dropped = files.createAtomic(path, true);
        dropped.write("dropped".getBytes());
        dropped.cancel();
        dropped.close();
        Vectors.equal("cancelled", "third", read(files, path));
        Vectors.equal("no draft is left", 1, files.list(path.getParent()).length);
        Vectors.equal("filtered", 0, files.list(path.getParent(), one -> false).length);

        files.write(path, "fourth".getBytes());
        Vectors.equal("written at once", "fourth", read(files, path));

        files.delete(path);
        files.delete(path);
        refuses("reading what is gone", () -> files.open(path), FileNotFoundException.class);
        refuses("listing what is not there", () -> files.list(path), FileNotFoundException.class);
    }

    private static String read(LocalFiles files, Path path) throws IOException {
        try (var in = files.open(path)) {
            return new String(in.readAllBytes());
        }
    }

    private interface Step {
        void run() throws IOException;
    }

    private static void refuses(String what, Step step, Class<? extends IOException> expected) {
        Class<?> thrown = null;
        try {
            step.run();
        } catch (IOException error) {
            thrown = error.getClass();
        }
        Vectors.equal(what, expected, thrown);
    }
}
