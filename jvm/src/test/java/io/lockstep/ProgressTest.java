package io.lockstep;

public final class ProgressTest {
    private ProgressTest() {}

    public static void all() {
        Progress.read("nobody's", 0, 5, 0);
        Vectors.equal("an input that nobody expects", false, Progress.json().contains("nobody's"));
        Progress.expect("mine");
        Progress.read("mine", 0, 5, 2);
        Vectors.equal("read", true, Progress.json().contains("\"mine\":{\"0\":[5,2]}"));
        Progress.forget("mine");
        Progress.read("mine", 0, 6, 1);
        Vectors.equal("a reader of a query that has ended", false, Progress.json().contains("mine\""));
    }
}
