// HikariCP, its connections tested before they are lent, with and without transactions of its own, while the poolers behind ROLLING_URL
// are restarted one after the other: every transaction has to succeed. Works until the file ROLLING_STOP is there,
// and makes one of its own when it has begun.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

public class Main {
    static final int THREADS = 8;
    static final Path STOP = Path.of(System.getenv("ROLLING_STOP"));
    static final Queue<String> FAILURES = new ConcurrentLinkedQueue<>();
    static final AtomicInteger DONE = new AtomicInteger();

    static HikariDataSource pool(boolean autoCommit) {
        var config = new HikariConfig();
        config.setJdbcUrl(System.getenv("ROLLING_URL").replaceFirst("postgres://[^@]*@", "jdbc:postgresql://"));
        config.setUsername("driver");
        config.setMaximumPoolSize(THREADS);
        config.setAutoCommit(autoCommit);
        return new HikariDataSource(config);
    }

    static void work(HikariDataSource pool, boolean autoCommit, boolean pauses) throws InterruptedException {
        while (!Files.exists(STOP)) {
            try (Connection connection = pool.getConnection(); Statement statement = connection.createStatement()) {
                statement.execute("select pg_sleep(0.002)");
                if (!autoCommit) {
                    statement.execute("select pg_sleep(0.001)");
                    connection.commit();
                }
                DONE.incrementAndGet();
            } catch (SQLException failure) {
                FAILURES.add((autoCommit ? "autocommit: " : "transaction: ") + failure);
            }
            if (pauses) {
                Thread.sleep(20);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        // Tested whenever they are lent, and not only after half a second of rest; with 0, not within the millisecond.
        System.setProperty("com.zaxxer.hikari.aliveBypassWindowMs", "-1");
        List<Thread> threads = new ArrayList<>();
        try (var one = pool(true); var other = pool(false)) {
            for (int number = 0; number < THREADS; number++) {
                boolean autoCommit = number % 2 == 0;
                boolean pauses = number % 4 < 2;
                var thread = new Thread(() -> {
                    try {
                        work(autoCommit ? one : other, autoCommit, pauses);
                    } catch (InterruptedException stopped) {
                        FAILURES.add(stopped.toString());
                    }
                });
                thread.start();
                threads.add(thread);
            }
            Files.createFile(Path.of(STOP + ".hikari"));
            for (var thread : threads) {
                thread.join();
            }
        }
        FAILURES.stream().limit(5).forEach(failure -> System.out.println("FAILED " + failure));
        System.out.printf("HikariCP: %d transactions, %d failed%n", DONE.get(), FAILURES.size());
        System.exit(FAILURES.isEmpty() && DONE.get() > 0 ? 0 : 1);
    }
}
