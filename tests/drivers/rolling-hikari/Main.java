// HikariCP, its connections tested before they are lent, while the poolers behind ROLLING_URL are restarted one after the
// other: every transaction has to succeed. Works until the file ROLLING_STOP is there, and makes one of
// its own when it has begun.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.concurrent.atomic.AtomicInteger;

public class Main {
    static final int THREADS = 8;

    public static void main(String[] args) throws Exception {
        // By itself it tests those that were not used for half a second.
        System.setProperty("com.zaxxer.hikari.aliveBypassWindowMs", "0");
        var config = new HikariConfig();
        config.setJdbcUrl(System.getenv("ROLLING_JDBC_URL"));
        config.setMaximumPoolSize(THREADS);
        config.setAutoCommit(false);
        var stop = Path.of(System.getenv("ROLLING_STOP"));
        var done = new AtomicInteger();
        var failed = new AtomicInteger();
        try (var pool = new HikariDataSource(config)) {
            var threads = new ArrayList<Thread>();
            for (int number = 0; number < THREADS; number++) {
                boolean pauses = number % 2 == 1;
                var thread = new Thread(() -> {
                    while (!Files.exists(stop)) {
                        try {
                            work(pool);
                            done.incrementAndGet();
                            if (pauses) {
                                Thread.sleep(20);
                            }
                        } catch (Exception failure) {
                            if (failed.incrementAndGet() <= 5) {
                                System.out.println("FAILED " + failure);
                            }
                        }
                    }
                });
                thread.start();
                threads.add(thread);
            }
            Files.createFile(Path.of(stop + ".hikari"));
            for (var thread : threads) {
                thread.join();
            }
        }
        System.out.printf("HikariCP: %d transactions, %d failed%n", done.get(), failed.get());
        System.exit(failed.get() > 0 || done.get() == 0 ? 1 : 0);
    }

    static void work(HikariDataSource pool) throws Exception {
        try (var connection = pool.getConnection(); var statement = connection.prepareStatement("select ?::int, pg_sleep(0.002)")) {
            statement.setInt(1, 1);
            statement.executeQuery().close();
            connection.commit();
        }
    }
}
