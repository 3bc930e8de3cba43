complete -c pgferry -s u -l user -d 'Become this user once the configuration is read' -r
complete -c pgferry -s d -l daemon -d 'Run in the background (needs the setting pidfile)'
complete -c pgferry -s q -l quiet -d 'Print nothing on stderr'
complete -c pgferry -s R -l reboot -d 'Take the place of the process that runs: its sockets, clients and servers, without their noticing'
complete -c pgferry -s v -l verbose -d 'Say more; repeat it for even more'
complete -c pgferry -l check -d 'Read and check the configuration, then exit'
complete -c pgferry -s h -l help -d 'Print help'
complete -c pgferry -s V -l version -d 'Print version'
