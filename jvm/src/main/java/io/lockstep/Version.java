package io.lockstep;

/** Names the build that a jar came from, so that a site can say which Java it runs. */
public final class Version {
    private Version() {}

    /** The version in the jar's manifest, or "development" when the classes run outside a jar. */
    public static String get() {
        String version = Version.class.getPackage().getImplementationVersion();
        return version == null ? "development" : version;
    }
}
