"""pgferry beside other poolers, measured in turns. `scripts/bench` starts a PostgreSQL and calls this package.

Files, lower ones first:

  readings     what pgbench, strace and /proc say, as numbers; no process is started here
  figures      rounds of readings as medians and ratios; tables and JSON
  chart        the ratios as SVG
  access       the ways in: TCP, TLS, Unix socket, SCRAM
  configs      a configuration file for each pooler that is known
  targets      processes under measurement, and PostgreSQL itself
  pgbench      runs of pgbench, with and without strace
  wire         a small client of the protocol that reads faster than a pooler writes
  queries, connects, transfers, idle     one mode of measurement each
  __main__     arguments, and the order of things
"""
