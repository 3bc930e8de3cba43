// Lib/pq on the console at CONSOLE_URL, asking what exporters of metrics ask: every column they read must be
// there, as a number where they want one. Prints a line per check and the sum of them.
package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
)

// A column that becomes a metric of pgbouncer_exporter, by the names it has there.
type metric struct{ column, name string }

// The metrics of one SHOW; its other columns that are read are labels, texts or NULL.
type family struct {
	show, prefix string
	labels       []string
	metrics      []metric
}

// What pgbouncer_exporter (prometheus-community) makes of a PgBouncer of today. It leaves out, as it does there,
// what only older versions have.
var families = []family{
	{"DATABASES", "pgbouncer_databases_", []string{"name", "host", "port", "database", "force_user", "pool_mode"}, []metric{
		{"pool_size", "pool_size"},
		{"max_connections", "max_connections"},
		{"current_connections", "current_connections"},
		{"paused", "paused"},
		{"disabled", "disabled"},
	}},
	{"STATS", "pgbouncer_stats_", []string{"database"}, []metric{
		{"total_query_count", "queries_pooled_total"},
		{"total_query_time", "queries_duration_seconds_total"},
		{"total_received", "received_bytes_total"},
		{"total_sent", "sent_bytes_total"},
		{"total_wait_time", "client_wait_seconds_total"},
		{"total_xact_count", "sql_transactions_pooled_total"},
		{"total_xact_time", "server_in_transaction_seconds_total"},
	}},
	{"POOLS", "pgbouncer_pools_", []string{"database", "user", "pool_mode"}, []metric{
		{"cl_active", "client_active_connections"},
		{"cl_waiting", "client_waiting_connections"},
		{"cl_active_cancel_req", "client_active_cancel_connections"},
		{"cl_waiting_cancel_req", "client_waiting_cancel_connections"},
		{"sv_active", "server_active_connections"},
		{"sv_active_cancel", "server_active_cancel_connections"},
		{"sv_being_canceled", "server_being_canceled_connections"},
		{"sv_idle", "server_idle_connections"},
		{"sv_used", "server_used_connections"},
		{"sv_tested", "server_testing_connections"},
		{"sv_login", "server_login_connections"},
		{"maxwait", "client_maxwait_seconds"},
		{"maxwait_us", "client_maxwait_seconds"},
	}},
}

// Rows of SHOW LISTS that become metrics, and keys of SHOW CONFIG that do.
var (
	lists = strings.Fields("databases users pools free_clients used_clients login_clients free_servers used_servers" +
		" dns_names dns_zones dns_queries")
	settings = []string{"max_client_conn", "max_user_connections", "default_pool_size"}
)

type check struct {
	name string
	run  func(context.Context, *sql.DB) error
}

func main() {
	checks := []check{
		{"every number an exporter reads is one", numbers},
		{"SHOW LISTS and SHOW CONFIG have the rows that are read", keys},
		{"SHOW VERSION has a version in it", version},
		{"prepared and described first", prepared},
		{"a ping does no harm", ping},
		{"an error leaves the connection usable", errorThenUse},
	}
	failed := 0
	for _, check := range checks {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		if err := inOneConnection(ctx, check); err != nil {
			failed++
			fmt.Printf("FAILED %s: %v\n", check.name, err)
		} else {
			fmt.Printf("ok     %s\n", check.name)
		}
		stop()
	}
	fmt.Printf("pq: %d passed, %d failed\n", len(checks)-failed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

// As exporters do: one connection, never more.
func inOneConnection(ctx context.Context, check check) error {
	db, err := sql.Open("postgres", os.Getenv("CONSOLE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	return check.run(ctx, db)
}

// The rows of a SHOW as maps from columns to what lib/pq makes of them.
func show(ctx context.Context, db *sql.DB, command string) ([]map[string]any, error) {
	rows, err := db.QueryContext(ctx, command)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var found []map[string]any
	for rows.Next() {
		values := make([]any, len(columns))
		places := make([]any, len(columns))
		for at := range values {
			places[at] = &values[at]
		}
		if err := rows.Scan(places...); err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		row := map[string]any{}
		for at, column := range columns {
			row[column] = values[at]
		}
		found = append(found, row)
	}
	return found, rows.Err()
}

func number(value any) (float64, error) {
	switch value := value.(type) {
	case int64:
		return float64(value), nil
	case float64:
		return value, nil
	case []byte:
		return strconv.ParseFloat(string(value), 64)
	case string:
		return strconv.ParseFloat(value, 64)
	default:
		return 0, fmt.Errorf("%v (%T) is no number", value, value)
	}
}

func isText(value any) bool {
	switch value.(type) {
	case nil, string, []byte, int64:
		return true
	default:
		return false
	}
}

func numbers(ctx context.Context, db *sql.DB) error {
	var missing []string
	for _, family := range families {
		rows, err := show(ctx, db, "SHOW "+family.show+";")
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fmt.Errorf("SHOW %s has no rows", family.show)
		}
		for _, row := range rows {
			for _, label := range family.labels {
				if value, there := row[label]; !there || !isText(value) {
					missing = append(missing, fmt.Sprintf("%s.%s", family.show, label))
				}
			}
			for _, metric := range family.metrics {
				if _, err := number(row[metric.column]); err != nil {
					missing = append(missing, fmt.Sprintf("%s%s (%s)", family.prefix, metric.name, err))
				}
			}
		}
	}
	if missing != nil {
		return fmt.Errorf("not exported: %s", strings.Join(missing, ", "))
	}
	return nil
}

func keys(ctx context.Context, db *sql.DB) error {
	rows, err := show(ctx, db, "SHOW LISTS;")
	if err != nil {
		return err
	}
	if err := numbersByName(rows, "list", "items", lists); err != nil {
		return err
	}
	rows, err = show(ctx, db, "SHOW CONFIG;")
	if err != nil {
		return err
	}
	return numbersByName(rows, "key", "value", settings)
}

func numbersByName(rows []map[string]any, name, value string, wanted []string) error {
	found := map[string]any{}
	for _, row := range rows {
		if len(row) < 2 {
			return fmt.Errorf("a row of %d columns", len(row))
		}
		found[fmt.Sprint(row[name])] = row[value]
	}
	for _, key := range wanted {
		if _, err := number(found[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// Agents look for the first thing that looks like a version, and decide by it which columns to read.
func version(ctx context.Context, db *sql.DB) error {
	rows, err := show(ctx, db, "SHOW VERSION;")
	if err != nil {
		return err
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		return fmt.Errorf("%v", rows)
	}
	text := fmt.Sprint(rows[0]["version"])
	found := regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(text)
	if !strings.HasPrefix(found, "1.") || !strings.Contains(text, "PgBouncer "+found) {
		return fmt.Errorf("no version of PgBouncer's in %q", text)
	}
	return nil
}

// PgBouncer refuses this; whoever does not know that it does gets answers here.
func prepared(ctx context.Context, db *sql.DB) error {
	statement, err := db.PrepareContext(ctx, "SHOW POOLS")
	if err != nil {
		return err
	}
	defer statement.Close()
	for range 3 {
		rows, err := statement.QueryContext(ctx)
		if err != nil {
			return err
		}
		count := 0
		for rows.Next() {
			count++
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		if count == 0 {
			return errors.New("no rows")
		}
	}
	return nil
}

// Lib/pq pings with a query that is only a semicolon, to which PgBouncer answers an error, and gives the
// connection up. Exporters know that and send SHOW STATS in its place; who does not must get a new connection.
func ping(ctx context.Context, db *sql.DB) error {
	if err := db.PingContext(ctx); err != nil && !errors.Is(err, driver.ErrBadConn) {
		return err
	}
	_, err := show(ctx, db, "SHOW STATS")
	return err
}

func errorThenUse(ctx context.Context, db *sql.DB) error {
	connection, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = connection.ExecContext(ctx, "SELECT pg_is_in_recovery()")
	var refused *pq.Error
	if !errors.As(err, &refused) || refused.Code != "08P01" {
		return fmt.Errorf("not refused as PgBouncer does: %v", err)
	}
	return connection.QueryRowContext(ctx, "SHOW VERSION").Scan(new(string))
}
