// Pgx v5 through the pooler at DATABASE_URL: each of its execution modes, batches, COPY, transactions
// and database/sql, by many goroutines over fewer servers. Prints a line per check and the sum of them.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	goroutines = 50
	turns      = 40
)

// Every mode that pgx knows; each sends other messages.
var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement,
	pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}

type check struct {
	name string
	run  func(context.Context) error
}

func main() {
	var checks []check
	for _, mode := range modes {
		add := func(name string, run func(context.Context, pgx.QueryExecMode) error) {
			checks = append(checks, check{mode.String() + ": " + name, func(ctx context.Context) error { return run(ctx, mode) }})
		}
		add("every goroutine gets its own answers, from more than one server", ownAnswers)
		add("transactions commit, roll back and survive an error", transactions)
		add("an error leaves the statement usable", errorThenUse)
		add("a batch of fifty statements", batch)
		add("a batch with an error in the middle", batchWithError)
		add("a small statement cache", fewCachedStatements)
	}
	checks = append(checks,
		check{"CopyFrom and reading it back", copyFrom},
		check{"CopyFrom that breaks a constraint", copyFromFails},
		check{"named statements of Conn.Prepare", namedStatements},
		check{"database/sql", databaseSQL},
		check{"a cancelled query harms nobody", cancelled},
		check{"a large value both ways", largeValue},
		check{"RuntimeParams hold on every server", runtimeParams},
	)
	failed := 0
	for _, check := range checks {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		begin := time.Now()
		err := check.run(ctx)
		stop()
		if err != nil {
			failed++
			fmt.Printf("FAILED %s: %v\n", check.name, err)
		} else {
			fmt.Printf("ok     %s (%d ms)\n", check.name, time.Since(begin).Milliseconds())
		}
	}
	fmt.Printf("pgx: %d passed, %d failed\n", len(checks)-failed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func configure(mode pgx.QueryExecMode) *pgxpool.Config {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	config.MaxConns = goroutines
	config.ConnConfig.DefaultQueryExecMode = mode
	return config
}

func open(ctx context.Context, mode pgx.QueryExecMode) (*pgxpool.Pool, error) {
	return pgxpool.NewWithConfig(ctx, configure(mode))
}

// parallel runs work in many goroutines, each with a connection of its own for the whole time.
func parallel(ctx context.Context, mode pgx.QueryExecMode, work func(int, *pgx.Conn) error) error {
	pool, err := open(ctx, mode)
	if err != nil {
		return err
	}
	defer pool.Close()
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for number := range goroutines {
		all.Add(1)
		go func() {
			defer all.Done()
			conn, err := pool.Acquire(ctx)
			if err != nil {
				errs[number] = err
				return
			}
			defer conn.Release()
			errs[number] = work(number, conn.Conn())
		}()
	}
	all.Wait()
	return firstOf(errs)
}

func ownAnswers(ctx context.Context, mode pgx.QueryExecMode) error {
	var lock sync.Mutex
	most := 0
	err := parallel(ctx, mode, func(number int, conn *pgx.Conn) error {
		servers := map[int]bool{}
		for turn := range turns {
			// Seven texts, which all goroutines share, under names that pgx gives.
			text := fmt.Sprintf("select $1::text, $2::int + %d, pg_backend_pid()", turn%7)
			mine := fmt.Sprintf("%d of %d", turn, number)
			var echo string
			var sum, pid int
			if err := conn.QueryRow(ctx, text, mine, number).Scan(&echo, &sum, &pid); err != nil {
				return err
			}
			if echo != mine || sum != number+turn%7 {
				return fmt.Errorf("asked for %q, got %q and %d", mine, echo, sum)
			}
			servers[pid] = true
		}
		lock.Lock()
		defer lock.Unlock()
		most = max(most, len(servers))
		return nil
	})
	if err == nil && most < 2 {
		return errors.New("no connection met more than one server")
	}
	return err
}

func transactions(ctx context.Context, mode pgx.QueryExecMode) error {
	table, drop, err := makeTable(ctx, "id int primary key, word text")
	if err != nil {
		return err
	}
	defer drop()
	err = parallel(ctx, mode, func(number int, conn *pgx.Conn) error {
		insert := "insert into " + table + " values ($1, $2)"
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert, number, "kept")
			return err
		})
		if err != nil {
			return err
		}
		stop := errors.New("stop")
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, insert, number+1000, "undone"); err != nil {
				return err
			}
			return stop
		})
		if !errors.Is(err, stop) {
			return fmt.Errorf("the rollback: %w", err)
		}
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert, number, "again")
			return err
		})
		if sqlstate(err) != "23505" {
			return fmt.Errorf("a duplicate key: %w", err)
		}
		// A nested transaction is a savepoint.
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
				_, err := inner.Exec(ctx, insert, number, "inner")
				return err
			})
			if sqlstate(err) != "23505" {
				return fmt.Errorf("a duplicate key at a savepoint: %w", err)
			}
			_, err = tx.Exec(ctx, insert, number+2000, "kept")
			return err
		})
	})
	if err != nil {
		return err
	}
	return expectCount(ctx, table, 2*goroutines)
}

func errorThenUse(ctx context.Context, mode pgx.QueryExecMode) error {
	return parallel(ctx, mode, func(number int, conn *pgx.Conn) error {
		for turn := range 10 {
			var quotient int
			err := conn.QueryRow(ctx, "select 100 / $1::int", turn%2).Scan(&quotient)
			if turn%2 == 0 && sqlstate(err) != "22012" {
				return fmt.Errorf("a division by zero: %w", err)
			}
			if turn%2 == 1 && (err != nil || quotient != 100) {
				return fmt.Errorf("after an error: %d, %v", quotient, err)
			}
			_, err = conn.Exec(ctx, "select * from nowhere where id = $1", number)
			if code := sqlstate(err); code != "42P01" {
				return fmt.Errorf("a missing table: %w", err)
			}
		}
		return nil
	})
}

func batch(ctx context.Context, mode pgx.QueryExecMode) error {
	return parallel(ctx, mode, func(number int, conn *pgx.Conn) error {
		for range 3 {
			batch := &pgx.Batch{}
			for item := range 50 {
				batch.Queue(fmt.Sprintf("select $1::int + %d", item), number)
			}
			results := conn.SendBatch(ctx, batch)
			for item := range 50 {
				var sum int
				if err := results.QueryRow().Scan(&sum); err != nil {
					return errors.Join(err, results.Close())
				}
				if sum != number+item {
					return fmt.Errorf("item %d of %d: %d", item, number, sum)
				}
			}
			if err := results.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

func batchWithError(ctx context.Context, mode pgx.QueryExecMode) error {
	return parallel(ctx, mode, func(number int, conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		batch.Queue("select $1::int", number)
		batch.Queue("select 1 / $1::int", 0)
		batch.Queue("select 'skipped', $1::int", number)
		results := conn.SendBatch(ctx, batch)
		var value int
		first := results.QueryRow().Scan(&value)
		_, second := results.Exec()
		_ = results.Close()
		// The simple protocol runs the batch as one query, whose first error may come for the first item.
		if first != nil && sqlstate(first) != "22012" {
			return first
		}
		if first == nil && sqlstate(second) != "22012" {
			return fmt.Errorf("the second of the batch: %w", second)
		}
		if err := conn.QueryRow(ctx, "select $1::int", number).Scan(&value); err != nil || value != number {
			return fmt.Errorf("after the batch: %d, %v", value, err)
		}
		return nil
	})
}

// A small cache makes pgx close and prepare all the time.
func fewCachedStatements(ctx context.Context, mode pgx.QueryExecMode) error {
	config := configure(mode)
	config.MaxConns = 10
	config.ConnConfig.StatementCacheCapacity = 3
	config.ConnConfig.DescriptionCacheCapacity = 3
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	var all sync.WaitGroup
	errs := make([]error, 10)
	for number := range errs {
		all.Add(1)
		go func() {
			defer all.Done()
			for turn := range 60 {
				var sum int
				text := fmt.Sprintf("select $1::int + %d", turn%8)
				if err := pool.QueryRow(ctx, text, number).Scan(&sum); err != nil || sum != number+turn%8 {
					errs[number] = fmt.Errorf("turn %d: %d, %v", turn, sum, err)
					return
				}
			}
		}()
	}
	all.Wait()
	return firstOf(errs)
}

func copyFrom(ctx context.Context) error {
	table, drop, err := makeTable(ctx, "id int, word text, made timestamptz")
	if err != nil {
		return err
	}
	defer drop()
	const rows = 500
	err = parallel(ctx, pgx.QueryExecModeCacheStatement, func(number int, conn *pgx.Conn) error {
		source := pgx.CopyFromSlice(rows, func(row int) ([]any, error) {
			return []any{number, fmt.Sprintf("row %d", row), time.Unix(int64(row), 0)}, nil
		})
		count, err := conn.CopyFrom(ctx, pgx.Identifier{table}, []string{"id", "word", "made"}, source)
		if err == nil && count != rows {
			err = fmt.Errorf("%d rows copied", count)
		}
		return err
	})
	if err != nil {
		return err
	}
	return expectCount(ctx, table, rows*goroutines)
}

func copyFromFails(ctx context.Context) error {
	table, drop, err := makeTable(ctx, "id int primary key")
	if err != nil {
		return err
	}
	defer drop()
	err = parallel(ctx, pgx.QueryExecModeCacheStatement, func(number int, conn *pgx.Conn) error {
		source := pgx.CopyFromSlice(20000, func(row int) ([]any, error) { return []any{row % 10}, nil })
		_, err := conn.CopyFrom(ctx, pgx.Identifier{table}, []string{"id"}, source)
		if sqlstate(err) != "23505" {
			return fmt.Errorf("copying duplicates: %w", err)
		}
		var value int
		return conn.QueryRow(ctx, "select $1::int", number).Scan(&value)
	})
	if err != nil {
		return err
	}
	return expectCount(ctx, table, 0)
}

func namedStatements(ctx context.Context) error {
	return parallel(ctx, pgx.QueryExecModeCacheStatement, func(number int, conn *pgx.Conn) error {
		// One name for all connections, with a text of each its own.
		text := fmt.Sprintf("select $1::int * %d", number)
		if _, err := conn.Prepare(ctx, "fixed", text); err != nil {
			return err
		}
		for turn := range turns {
			var product int
			if err := conn.QueryRow(ctx, "fixed", turn).Scan(&product); err != nil || product != turn*number {
				return fmt.Errorf("%d * %d: %d, %v", turn, number, product, err)
			}
		}
		if err := conn.Deallocate(ctx, "fixed"); err != nil {
			return err
		}
		if _, err := conn.Prepare(ctx, "fixed", "select 'new'"); err != nil {
			return err
		}
		var word string
		if err := conn.QueryRow(ctx, "fixed").Scan(&word); err != nil || word != "new" {
			return fmt.Errorf("after Deallocate: %q, %v", word, err)
		}
		return conn.DeallocateAll(ctx)
	})
}

func databaseSQL(ctx context.Context) error {
	config := configure(pgx.QueryExecModeCacheStatement)
	database := stdlib.OpenDB(*config.ConnConfig)
	defer database.Close()
	database.SetMaxOpenConns(goroutines)
	statement, err := database.PrepareContext(ctx, "select $1::text || '!'")
	if err != nil {
		return err
	}
	defer statement.Close()
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for number := range goroutines {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[number] = useDatabaseSQL(ctx, database, statement, number)
		}()
	}
	all.Wait()
	return firstOf(errs)
}

func useDatabaseSQL(ctx context.Context, database *sql.DB, statement *sql.Stmt, number int) error {
	for turn := range turns {
		word := fmt.Sprintf("%d/%d", number, turn)
		var echo string
		if err := statement.QueryRowContext(ctx, word).Scan(&echo); err != nil || echo != word+"!" {
			return fmt.Errorf("%q: %q, %v", word, echo, err)
		}
		tx, err := database.BeginTx(ctx, &sql.TxOptions{ReadOnly: turn%2 == 0})
		if err != nil {
			return err
		}
		var value int
		if err := tx.QueryRowContext(ctx, "select $1::int", turn).Scan(&value); err != nil || value != turn {
			return errors.Join(fmt.Errorf("%d: %d, %v", turn, value, err), tx.Rollback())
		}
		if err := tx.Rollback(); err != nil {
			return err
		}
	}
	return nil
}

func cancelled(ctx context.Context) error {
	pool, err := open(ctx, pgx.QueryExecModeCacheStatement)
	if err != nil {
		return err
	}
	defer pool.Close()
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	if _, err := pool.Exec(short, "select pg_sleep(60)"); err == nil {
		return errors.New("the query was not cancelled")
	}
	for number := range goroutines {
		var value int
		if err := pool.QueryRow(ctx, "select $1::int", number).Scan(&value); err != nil || value != number {
			return fmt.Errorf("after the cancel: %d, %v", value, err)
		}
	}
	return nil
}

func largeValue(ctx context.Context) error {
	pool, err := open(ctx, pgx.QueryExecModeCacheStatement)
	if err != nil {
		return err
	}
	defer pool.Close()
	value := make([]byte, 20<<20)
	for at := range value {
		value[at] = byte(at * 7 >> 3)
	}
	var echo []byte
	if err := pool.QueryRow(ctx, "select $1::bytea", value).Scan(&echo); err != nil {
		return err
	}
	if string(echo) != string(value) {
		return errors.New("another value came back")
	}
	return nil
}

// makeTable makes a table of a name nobody else has, and says how to drop it.
func makeTable(ctx context.Context, columns string) (string, func(), error) {
	name := fmt.Sprintf("pgx_%d", time.Now().UnixNano())
	err := simple(ctx, "create table "+name+" ("+columns+")")
	return name, func() { _ = simple(context.WithoutCancel(ctx), "drop table "+name) }, err
}

func simple(ctx context.Context, text string) error {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	return err
}

func expectCount(ctx context.Context, table string, expected int) error {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var count int
	if err := conn.QueryRow(ctx, "select count(*) from "+table).Scan(&count); err != nil {
		return err
	}
	if count != expected {
		return fmt.Errorf("%d rows instead of %d", count, expected)
	}
	return nil
}

// firstOf tells the first failure, and how many there were.
func firstOf(errs []error) error {
	var first error
	count := 0
	for _, err := range errs {
		if err != nil {
			count++
			if first == nil {
				first = err
			}
		}
	}
	if count > 1 {
		return fmt.Errorf("%d failures, the first: %w", count, first)
	}
	return first
}

// sqlstate of a server's error; empty for others.
func sqlstate(err error) string {
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		return failure.Code
	}
	return ""
}

func runtimeParams(ctx context.Context) error {
	config := configure(pgx.QueryExecModeCacheStatement).ConnConfig
	config.RuntimeParams["statement_timeout"] = "17000"
	config.RuntimeParams["app.tenant"] = "t"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for range turns {
		var timeout, tenant string
		row := conn.QueryRow(ctx, "select current_setting('statement_timeout'), current_setting('app.tenant')")
		if err := row.Scan(&timeout, &tenant); err != nil {
			return err
		}
		if timeout != "17s" || tenant != "t" {
			return fmt.Errorf("%s, %s", timeout, tenant)
		}
		if _, err := conn.Exec(ctx, "reset all"); err != nil {
			return err
		}
	}
	config.RuntimeParams["statement_timeout"] = "soon"
	_, err = pgx.ConnectConfig(ctx, config)
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != "22023" {
		return fmt.Errorf("not refused: %w", err)
	}
	return nil
}
