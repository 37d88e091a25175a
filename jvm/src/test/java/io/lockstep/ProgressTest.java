package io.lockstep;

public final class ProgressTest {
    private ProgressTest() {}

    public static void all() {
        Progress.read("nobody's", 0, 5, 0);
        Vectors.equal("an input that nobody expects", false, Progress.json().contains("nobody's"));
        Progress.expect("mine");
        Progress.read("mine", 0, 5, 2);
        Vectors.equal("read", true, Progress.json().contains("\"mine\":{\"0\":[5,2]}"));
        Progress.batchBegan("first", 7);
        Progress.batchBegan("second", 3);
        Vectors.equal("the batch of the first query", true, Progress.json().contains("\"batch\":7,"));
        Progress.forget("mine");
        Progress.batchBegan("first", 8);
        Vectors.equal("no batch after the last query", true, Progress.json().contains("\"batch\":-1,\"batch_began\":0"));
        Progress.expect("mine");
        Progress.batchBegan("first", 7);
        Vectors.equal("a batch that begins anew", false, Progress.json().contains("\"batch_began\":0"));
        Progress.forget("mine");
        Progress.read("mine", 0, 6, 1);
        Vectors.equal("a reader of a query that has ended", false, Progress.json().contains("mine\""));
    }
}
