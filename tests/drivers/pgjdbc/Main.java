// Pgjdbc through the pooler at SESSIONS_URL, whose servers take turns, with statements prepared at their first use,
// session characteristics, schemas, temporary tables and autocommit off. Nothing here knows of a pooler. Prints a
// line per check and the sum of them.

import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.postgresql.PGConnection;
import org.postgresql.util.PSQLException;

public class Main {
    /** A program with settings of its own. */
    record Application(String schema, String zone, String timeout, int isolation, String isolationName) {}

    static final Application SHOP =
            new Application("shop", "Asia/Tokyo", "11s", Connection.TRANSACTION_SERIALIZABLE, "serializable");
    static final Application BANK =
            new Application("bank", "America/Lima", "12s", Connection.TRANSACTION_REPEATABLE_READ, "repeatable read");
    static final Application[] BOTH = {SHOP, BANK};

    interface Work {
        void with(Connection connection, Application own, int number) throws Exception;
    }

    interface Check {
        void run() throws Exception;
    }

    static void check(boolean condition, Object... seen) {
        if (!condition) {
            throw new AssertionError(List.of(seen).toString());
        }
    }

    /** Options are pairs of names and values. */
    static Connection connect(String... options) throws SQLException {
        URI url = URI.create(System.getenv("SESSIONS_URL"));
        Properties properties = new Properties();
        properties.setProperty("user", url.getUserInfo());
        properties.setProperty("sslmode", "disable");
        properties.setProperty("prepareThreshold", "1");
        for (int at = 0; at < options.length; at += 2) {
            properties.setProperty(options[at], options[at + 1]);
        }
        return DriverManager.getConnection(
                "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath(), properties);
    }

    /** A connection as an application's pool hands it out. */
    static Connection connect(Application own) throws SQLException {
        Connection connection = connect("ApplicationName", own.schema, "readOnlyMode", "always");
        connection.setSchema(own.schema);
        connection.setTransactionIsolation(own.isolation);
        run(connection, "set time zone '" + own.zone + "'");
        run(connection, "set lock_timeout = '" + own.timeout + "'");
        return connection;
    }

    static void run(Connection connection, String text) throws SQLException {
        try (var statement = connection.createStatement()) {
            statement.execute(text);
        }
    }

    static String value(Connection connection, String text, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            for (int at = 0; at < values.length; at++) {
                statement.setObject(at + 1, values[at]);
            }
            try (ResultSet rows = statement.executeQuery()) {
                check(rows.next(), text);
                return rows.getString(1);
            }
        }
    }

    /** Whether the connection meets a second server, which it does not while something keeps it at one. */
    static boolean roams(Connection connection) throws SQLException {
        Set<String> seen = new HashSet<>();
        for (int turn = 0; turn < 100 && seen.size() < 2; turn++) {
            seen.add(value(connection, "select pg_backend_pid()"));
        }
        return seen.size() > 1;
    }

    static void fails(String state, Check check) throws Exception {
        try {
            check.run();
        } catch (SQLException failure) {
            check(state.equals(failure.getSQLState()), state, failure);
            return;
        }
        throw new AssertionError("no error, where " + state + " was due");
    }

    /** Runs work in a thread for each of so many connections of both applications, all at the same time. */
    static void together(int count, Work work) throws Exception {
        List<Callable<Void>> all = new ArrayList<>();
        for (Application own : BOTH) {
            for (int number = 0; number < count; number++) {
                int mine = number;
                all.add(() -> {
                    try (Connection connection = connect(own)) {
                        work.with(connection, own, mine);
                    }
                    return null;
                });
            }
        }
        var threads = Executors.newFixedThreadPool(all.size());
        try {
            for (Future<Void> done : threads.invokeAll(all, 30, TimeUnit.SECONDS)) {
                done.get();
            }
        } finally {
            threads.shutdownNow();
        }
    }


    static void prepareDatabase() throws SQLException {
        try (Connection connection = connect()) {
            for (Application own : BOTH) {
                run(connection, "drop schema if exists " + own.schema + " cascade");
                run(connection, "create schema " + own.schema);
                run(connection, "create table " + own.schema + ".things (id int primary key, thing text)");
                run(connection, "insert into " + own.schema + ".things select n, '" + own.schema
                        + " ' || n from generate_series(1, 50) n");
            }
        }
    }

    static void whatIsSetHoldsOnEveryServer() throws Exception {
        Set<String> servers = ConcurrentHashMap.newKeySet();
        together(4, (connection, own, number) -> {
            for (int turn = 0; turn < 20; turn++) {
                servers.add(value(connection, "select pg_backend_pid()"));
                String seen = value(connection, "select current_setting('search_path') || ' ' || current_setting('timezone')"
                        + " || ' ' || current_setting('lock_timeout') || ' ' || current_setting('application_name')"
                        + " || ' ' || current_setting('default_transaction_isolation')");
                check(seen.replace("\"", "").equals(String.join(" ",
                        own.schema, own.zone, own.timeout, own.schema, own.isolationName)), seen, own);
                check(connection.getSchema().equals(own.schema), own);
                int id = (number + turn) % 50 + 1;
                String thing = value(connection, "select thing from things where id = ?", id);
                check(thing.equals(own.schema + " " + id), thing, own);
            }
        });
        check(servers.size() > 1, "one server only");
    }

    static void sessionCharacteristicsAreThoseOfTheConnection() throws Exception {
        together(3, (connection, own, number) -> {
            for (int turn = 0; turn < 5; turn++) {
                connection.setReadOnly(turn % 2 == 0);
                check(value(connection, "show transaction_isolation").equals(own.isolationName), own);
                Check write = () -> run(connection, "update things set thing = thing where id = 0");
                if (turn % 2 == 0) {
                    fails("25006", write);
                } else {
                    write.run();
                }
                connection.setAutoCommit(false);
                check(value(connection, "show transaction_isolation").equals(own.isolationName), own);
                check(value(connection, "show transaction_read_only").equals(turn % 2 == 0 ? "on" : "off"), own);
                connection.rollback();
                connection.setAutoCommit(true);
            }
        });
        try (Connection connection = connect()) {
            check(connection.getTransactionIsolation() == Connection.TRANSACTION_READ_COMMITTED);
            check(value(connection, "show default_transaction_read_only").equals("off"));
        }
    }

    static void transactionsWithAutocommitOff() throws Exception {
        try (Connection connection = connect()) {
            run(connection, "drop table if exists kept; create table kept (id int primary key, word text)");
        }
        together(4, (connection, own, number) -> {
            connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            connection.setAutoCommit(false);
            int id = number + (own == SHOP ? 0 : 100);
            try (var insert = connection.prepareStatement("insert into public.kept values (?, ?)")) {
                for (int item = 0; item < 10; item++) {
                    insert.setInt(1, id * 10 + item);
                    insert.setString(2, own.schema);
                    insert.addBatch();
                }
                insert.executeBatch();
                connection.commit();
                insert.setInt(1, id * 10);
                var before = connection.setSavepoint();
                fails("23505", insert::execute);
                fails("25P02", () -> value(connection, "select 1"));
                connection.rollback(before);
                insert.setInt(1, id * 10 + 5000);
                insert.execute();
                connection.rollback();
            }
            try (var select = connection.prepareStatement("select id from public.kept where word = ? order by id")) {
                select.setFetchSize(3);
                select.setString(1, own.schema);
                try (var rows = select.executeQuery()) {
                    int count = 0;
                    while (rows.next()) {
                        count++;
                    }
                    check(count >= 10 && count <= 40, count);
                }
            }
            connection.commit();
        });
        try (Connection connection = connect()) {
            check(value(connection, "select count(*) from kept").equals("80"));
            run(connection, "drop table kept");
        }
    }

    static void temporaryTablesStayForAsLongAsTheyAreThere() throws Exception {
        // Fewer than there are servers, as each keeps one.
        together(1, (connection, own, number) -> {
            run(connection, "create temporary table basket (thing text)");
            for (int turn = 0; turn < 10; turn++) {
                try (var insert = connection.prepareStatement("insert into basket select thing from things where id = ?")) {
                    insert.setInt(1, turn + 1);
                    check(insert.executeUpdate() == 1);
                }
            }
            check(value(connection, "select count(*) from basket where thing like ?", own.schema + " %").equals("10"));
            run(connection, "drop table basket");
            check(roams(connection), "still kept");
            fails("42P01", () -> value(connection, "select count(*) from basket where thing like ?", "%"));
            check(value(connection, "select count(*) from things").equals("50"), own);
        });
    }

    static void locksAndNotificationsAreTheConnections() throws Exception {
        try (Connection listener = connect(); Connection worker = connect()) {
            run(listener, "listen news");
            check(value(listener, "select pg_try_advisory_lock(?)", 4712L).equals("t"));
            check(value(worker, "select pg_try_advisory_lock(?)", 4712L).equals("f"));
            List<String> heard = new ArrayList<>();
            for (int turn = 0; turn < 10; turn++) {
                value(worker, "select pg_notify('news', ?)", "number " + turn);
                for (var notification : listener.unwrap(PGConnection.class).getNotifications(10000)) {
                    heard.add(notification.getParameter());
                }
            }
            check(heard.size() == 10 && heard.get(9).equals("number 9"), heard);
            check(value(listener, "select pg_advisory_unlock(?)", 4712L).equals("t"));
            run(listener, "unlisten news");
            check(roams(listener), "still kept");
            check(value(worker, "select pg_try_advisory_xact_lock(?)", 4712L).equals("t"));
        }
    }

    static void aQueryTimeoutCancelsOnlyItsOwnQuery() throws Exception {
        together(2, (connection, own, number) -> {
            try (var sleep = connection.prepareStatement("select pg_sleep(?)")) {
                sleep.setDouble(1, own == SHOP ? 20 : 1.5);
                if (own == SHOP) {
                    sleep.setQueryTimeout(1);
                    fails("57014", sleep::execute);
                } else {
                    sleep.execute();
                }
            }
            check(value(connection, "show lock_timeout").equals(own.timeout));
        });
    }

    /** The driver puts these into its startup message. */
    static void settingsInTheUrlHoldOnEveryServer() throws Exception {
        try (Connection shop = connect("currentSchema", "shop", "options", "-c lock_timeout=21s");
                Connection bank = connect("currentSchema", "bank");
                Connection plain = connect()) {
            for (int turn = 0; turn < 10; turn++) {
                check(value(shop, "select thing from things where id = 1").equals("shop 1"));
                check(value(bank, "select thing from things where id = 1").equals("bank 1"));
                check(value(shop, "show lock_timeout").equals("21s"));
                check(value(plain, "show lock_timeout").equals("0"));
                run(shop, "discard all");
            }
            check(roams(shop));
        }
        fails("22023", () -> connect("options", "-c lock_timeout=soon").close());
    }

    static final Object[][] CHECKS = {
        {"what is set holds on every server", (Check) Main::whatIsSetHoldsOnEveryServer},
        {"session characteristics are those of the connection", (Check) Main::sessionCharacteristicsAreThoseOfTheConnection},
        {"transactions with autocommit off", (Check) Main::transactionsWithAutocommitOff},
        {"temporary tables stay for as long as they are there", (Check) Main::temporaryTablesStayForAsLongAsTheyAreThere},
        {"locks and notifications are the connection's", (Check) Main::locksAndNotificationsAreTheConnections},
        {"a query timeout cancels only its own query", (Check) Main::aQueryTimeoutCancelsOnlyItsOwnQuery},
        {"settings in the URL hold on every server", (Check) Main::settingsInTheUrlHoldOnEveryServer},
    };

    public static void main(String[] arguments) throws Exception {
        prepareDatabase();
        int failed = 0;
        for (Object[] check : CHECKS) {
            long begin = System.nanoTime();
            try {
                ((Check) check[1]).run();
                System.out.printf("ok     %s (%d ms)%n", check[0], (System.nanoTime() - begin) / 1_000_000);
            } catch (Exception | AssertionError failure) {
                failed++;
                System.out.printf("FAILED %s: %s%n", check[0], failure);
                failure.printStackTrace(System.out);
            }
        }
        System.out.printf("pgjdbc: %d passed, %d failed%n", CHECKS.length - failed, failed);
        System.exit(failed > 0 ? 1 : 0);
    }
}
