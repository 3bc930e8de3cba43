"""What pgbench, strace and the kernel print, as they print it."""

import os
import unittest

from compare import readings
from compare.readings import Failure, Transaction, Usage

PGBENCH = """\
pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: <builtin: select only>
scaling factor: 5
query mode: prepared
number of clients: 16
number of threads: 2
maximum number of tries: 1
duration: 4 s
number of transactions actually processed: 81234
number of failed transactions: 0 (0.000%)
latency average = 0.787 ms
initial connection time = 21.410 ms
tps = 20345.117238 (without initial connection time)
"""

PGBENCH_13 = """\
number of transactions actually processed: 100
tps = 90.000000 (including connections establishing)
tps = 99.500000 (excluding connections establishing)
"""

STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 61.20    0.301024           7     40123           io_uring_enter
 38.80    0.190833           4     41877     12034 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.491857           5     82000     12034 total
"""

STAT = ("4711 (a (odd) name) S 1 4711 4711 0 -1 4194560 103 0 0 0 1234 5678 0 0 20 0 3 0 2902019 2998272 414 "
        "18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n")

STATUS = "Name:\tpgferry\nThreads:\t3\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t7\n"

ROLLUP = """\
5583a4000000-7ffd9a1f1000 ---p 00000000 00:00 0                          [rollup]
Rss:               14800 kB
Pss:               12345 kB
Anonymous:          8500 kB
"""


class Pgbench(unittest.TestCase):
    def test_the_summary_is_read(self):
        run = readings.parse_pgbench(PGBENCH)
        self.assertEqual((run.transactions, run.failed), (81234, 0))
        self.assertAlmostEqual(run.tps, 20345.117238)

    def test_reconnections_count_where_every_transaction_connects(self):
        text = PGBENCH.replace("(without initial connection time)", "(including reconnection times)")
        self.assertAlmostEqual(readings.parse_pgbench(text).tps, 20345.117238)

    def test_failed_transactions_are_seen(self):
        text = PGBENCH.replace("failed transactions: 0", "failed transactions: 12")
        self.assertEqual(readings.parse_pgbench(text).failed, 12)

    def test_older_versions_say_nothing_of_failures(self):
        self.assertEqual(readings.parse_pgbench(PGBENCH_13).failed, 0)

    def test_a_run_that_processed_nothing_is_a_failure(self):
        for text in ("", PGBENCH.replace("81234", "0")):
            with self.assertRaises(Failure):
                readings.parse_pgbench(text)

    def test_a_line_of_a_log_says_when_a_transaction_ended_and_how_long_it_took(self):
        lines = ["0 1 2412 0 1175850568 995598\n", "3 2 998 0 1175850569 1279 0\n"]
        self.assertEqual(readings.parse_log(lines), [Transaction(1, 1175850568993186, 2412),
                                                     Transaction(2, 1175850569000281, 998)])

    def test_what_begins_before_the_last_client_has_begun_is_the_start(self):
        log = [Transaction(1, 0, 900), Transaction(2, 950, 70), Transaction(1, 1000, 30), Transaction(2, 1031, 8),
               Transaction(3, 1040, 5)]
        self.assertEqual(readings.steady(log), [5, 8])
        self.assertEqual(readings.steady([]), [])


class Percentiles(unittest.TestCase):
    def test_percentiles_of_a_thousand_values(self):
        values = list(range(1000))
        self.assertEqual([readings.percentile(values, share) for share in (0.5, 0.99, 0.999)], [500, 990, 999])

    def test_a_single_value_is_every_percentile(self):
        self.assertEqual(readings.percentile([7], 0.999), 7)

    def test_nothing_has_no_percentile(self):
        self.assertIsNone(readings.percentile([], 0.5))


class Kernel(unittest.TestCase):
    def test_the_first_number_of_schedstat_is_the_time_on_a_cpu(self):
        self.assertEqual(readings.parse_schedstat("123456789 40731 12\n"), 123456789)

    def test_a_name_with_brackets_and_spaces_moves_nothing_in_stat(self):
        self.assertEqual(readings.parse_stat(STAT), (1234, 5678))

    def test_both_kinds_of_switches_are_read(self):
        self.assertEqual(readings.parse_switches(STATUS), (150, 7))

    def test_memory_is_in_bytes(self):
        found = readings.parse_memory(ROLLUP)
        self.assertEqual((found["Rss"], found["Anonymous"]), (14800 * 1024, 8500 * 1024))

    def test_the_total_of_strace_is_found_with_and_without_errors(self):
        self.assertEqual(readings.parse_strace(STRACE)["total"], 82000)
        self.assertEqual(readings.parse_strace(STRACE.replace("     12034 total", "           total"))["total"], 82000)

    def test_each_system_call_is_counted_by_name(self):
        self.assertEqual(readings.parse_strace(STRACE),
                         {"io_uring_enter": 40123, "recvfrom": 41877, "total": 82000})

    def test_nothing_traced_is_nothing(self):
        self.assertEqual(readings.parse_strace(""), {})

    def test_events_that_could_not_be_counted_are_left_out(self):
        text = ("# started on Sat Nov 21\n\n144,,raw_syscalls:sys_enter,100,100.00,,\n"
                "<not supported>,,instructions:u,0,100.00,,\n")
        self.assertEqual(readings.parse_perf(text), {"raw_syscalls:sys_enter": 144})

    def test_our_own_process_can_be_read(self):
        used = readings.usage_of(os.getpid())
        self.assertGreater(used.cpu + used.user + used.system, 0)
        self.assertGreater(readings.memory_of(os.getpid())["Rss"], 0)


class Usages(unittest.TestCase):
    def test_a_difference_is_what_happened_in_between(self):
        difference = Usage(3.0, 1.0, 2.0, 10, 4) - Usage(1.0, 0.5, 0.5, 6, 1)
        self.assertEqual(difference, Usage(2.0, 0.5, 1.5, 4, 3))

    def test_exact_time_is_divided_as_the_ticks_are(self):
        row = Usage(cpu=2.0, user=0.5, system=1.5, voluntary=100, involuntary=10).per(1000, 1e6)
        self.assertEqual(row, {"cpu": 2000.0, "user": 500.0, "system": 1500.0, "voluntary": 0.1, "involuntary": 0.01})

    def test_without_ticks_nothing_is_said_of_user_and_system(self):
        self.assertNotIn("user", Usage(cpu=0.001).per(10))
        self.assertNotIn("user", Usage(cpu=0.001, user=-0.01, system=0.02).per(10))

    def test_a_difference_that_is_lost_in_noise_has_no_columns(self):
        self.assertEqual(Usage(cpu=-0.001).per(10), {})
        self.assertEqual(Usage(cpu=1.0).per(0), {})
