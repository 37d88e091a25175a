package io.lockstep.source;

import io.lockstep.Vectors;
import io.lockstep.order.OrderRecord;
import java.util.List;
import java.util.Set;

public final class GroupTest {
    private GroupTest() {}

    public static void all() {
        Group group = Group.parse("a+b~+c!+d~!", "orders:3");
        List<Group.Member> members = List.of(
                new Group.Member("a", false, false),
                new Group.Member("b", false, true),
                new Group.Member("c", true, false),
                new Group.Member("d", true, true));
        Vectors.equal("members", members, group.members());
        Vectors.equal("a stage topic is deduplicated", true, group.deduplicated("b"));
        Vectors.equal("a broadcast stage topic too", true, group.deduplicated("d"));
        Vectors.equal("an input of the user's is not", false, group.deduplicated("c"));
        Vectors.equal("progress of several", "a+b~+c!+d~!", group.reported());
        Vectors.equal("progress of one", "b", Group.parse("b~", "").reported());
        Vectors.equal("the order's partition", 5, group.order(2).partition());
        Vectors.equal(
                "with one shard the user's own topics may grow",
                Set.of(new OrderRecord.Queue("a", 0)),
                group.growing(topic -> 1));
        Vectors.equal("with two shards none may", Set.of(), group.growing(topic -> 2));
        Vectors.equal("nor without an order topic", Set.of(), Group.parse("a", "").growing(topic -> 1));
    }
}
