package io.lockstep;

/**
 * A failure that a person has to act on: what is wrong, and what to do about it.
 *
 * <p>Spark wraps it in several layers, so the message carries a marker by which the Python side finds it again.
 */
public final class LockstepException extends RuntimeException {
    public static final String MARKER = "lockstep says: ";

    public LockstepException(String what, String hint) {
        this(what, hint, null);
    }

    public LockstepException(String what, String hint, Throwable cause) {
        super(MARKER + what + " | " + hint + " |", cause);
    }
}
