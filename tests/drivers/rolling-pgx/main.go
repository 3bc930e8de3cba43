// Pgxpool, its connections pinged before they are lent, while the poolers behind ROLLING_URL are restarted one after the
// other: every transaction has to succeed. Works until the file ROLLING_STOP is there, and makes one of
// its own when it has begun.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const goroutines = 8

func main() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("ROLLING_URL"))
	if err != nil {
		panic(err)
	}
	config.MaxConns = goroutines
	// By itself it pings those that were not used for a second.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	var done, failed atomic.Int64
	var all sync.WaitGroup
	for number := range goroutines {
		all.Go(func() {
			for !stopped() {
				if err := work(ctx, pool, number); err == nil {
					done.Add(1)
				} else if failed.Add(1) <= 5 {
					fmt.Println("FAILED", err)
				}
				if number%2 == 1 {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	if err := os.WriteFile(os.Getenv("ROLLING_STOP")+".pgx", nil, 0o600); err != nil {
		panic(err)
	}
	all.Wait()
	fmt.Printf("pgxpool: %d transactions, %d failed\n", done.Load(), failed.Load())
	if failed.Load() > 0 || done.Load() == 0 {
		os.Exit(1)
	}
}

func stopped() bool {
	_, err := os.Stat(os.Getenv("ROLLING_STOP"))
	return err == nil
}

func work(ctx context.Context, pool *pgxpool.Pool, number int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var value int
		if err := tx.QueryRow(ctx, "select $1::int", number).Scan(&value); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "select pg_sleep(0.002)")
		return err
	})
}
