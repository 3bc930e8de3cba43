"""psycopg_pool, its connections checked before they are lent, while the poolers behind ROLLING_URL are restarted one after
the other: every transaction has to succeed. Works until the file ROLLING_STOP is there, and makes one of
its own when it has begun."""

import logging
import os
import sys
import threading
import time

from psycopg_pool import ConnectionPool

THREADS = 8

done = [0] * THREADS
failures = []


def work(number, pool):
    while not os.path.exists(os.environ["ROLLING_STOP"]):
        try:
            with pool.connection() as conn:
                conn.execute("select %s::int", (number,))
                conn.execute("select pg_sleep(0.002)")
            done[number] += 1
        except Exception as failure:
            failures.append(repr(failure))
        if number % 2:
            time.sleep(0.02)


def main():
    # It warns of connections that it finds to be gone, which is what is wanted.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    url = os.environ["ROLLING_URL"]
    with ConnectionPool(url, min_size=THREADS, max_size=THREADS + 4, check=ConnectionPool.check_connection) as pool:
        pool.wait()
        threads = [threading.Thread(target=work, args=(number, pool)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        open(os.environ["ROLLING_STOP"] + ".psycopg", "w").close()
        for thread in threads:
            thread.join()
    for failure in failures[:5]:
        print("FAILED", failure)
    print(f"psycopg_pool: {sum(done)} transactions, {len(failures)} failed")
    return 1 if failures or not all(done) else 0


if __name__ == "__main__":
    sys.exit(main())
