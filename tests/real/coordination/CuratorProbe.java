import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.data.Stat;

/**
 * Curator, unchanged: recipes once, then a counter that is raised by compare-and-set until standard input
 * ends. Prints what it saw: every connection state, whether it stayed the leader, and the counts.
 */
public class CuratorProbe {
  public static void main(String[] arguments) throws Exception {
    CuratorFramework client =
        CuratorFrameworkFactory.newClient(arguments[0], 5000, 5000, new RetryNTimes(50, 100));
    List<ConnectionState> states = Collections.synchronizedList(new ArrayList<>());
    client.getConnectionStateListenable().addListener((c, state) -> states.add(state));
    client.start();
    client.blockUntilConnected(60, TimeUnit.SECONDS);
    InterProcessMutex mutex = new InterProcessMutex(client, "/curator/mutex");
    if (!mutex.acquire(60, TimeUnit.SECONDS)) {
      throw new IllegalStateException("no mutex");
    }
    mutex.release();
    LeaderLatch latch = new LeaderLatch(client, "/curator/latch", "probe");
    latch.start();
    if (!latch.await(60, TimeUnit.SECONDS)) {
      throw new IllegalStateException("no leadership");
    }
    client.create().creatingParentsIfNeeded().forPath("/curator/counter", "0".getBytes());
    System.out.println("READY");
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    int count = 0;
    boolean lost = false;
    while (!input.ready()) {
      Stat stat = new Stat();
      client.getData().storingStatIn(stat).forPath("/curator/counter");
      count++;
      client.setData().withVersion(stat.getVersion()).forPath("/curator/counter", ("" + count).getBytes());
      lost |= !latch.hasLeadership();
      Thread.sleep(1);
    }
    String data = new String(client.getData().forPath("/curator/counter"));
    System.out.println("STATES " + states);
    System.out.println("COUNTED " + count + " READ " + data);
    System.out.println("LEADERSHIP " + (lost ? "LOST" : "KEPT"));
    latch.close();
    client.close();
  }
}
