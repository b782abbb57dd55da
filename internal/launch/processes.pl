# processes: COUNT FIRST GRACE_MS COMMAND...
#
# Runs COUNT processes of the command, until all have ended. When one fails, it ends the
# others with TERM, the grace time and KILL, and then ends itself. Its own wait status is
# that of the first process that failed. The file "failed" in the directory of the attempt
# has the number and the pid of that process. Process i has MULTIHOST_LOCAL_ID=i, and
# FIRST+i in MULTIHOST_PROCESS_ID and JAX_PROCESS_ID.
#
# Descriptor 8 has the command's environment, in the form of /proc/PID/environ. Descriptor 6
# is the command's output. The language is perl because its waitpid distinguishes a death by
# signal from an exit with 128+n. It needs no module.
use strict;

my ($count, $first, $grace, @command) = @ARGV;
my %env;
{
	open(my $in, '<&=', 8) or die "read the environment: $!\n";
	local $/;
	for (split /\0/, <$in>) {
		my ($name, $value) = split /=/, $_, 2;
		$env{$name} = $value if defined $value;
	}
}

# When multihost stops a run, it signals each process itself and limits the time. This
# program must survive the signal, to see how the processes end. It has handlers, because an
# ignored signal would stay ignored in the command.
my $stopped;
my @signals = grep { ($SIG{$_} // '') ne 'IGNORE' } qw(HUP INT QUIT PIPE TERM USR1 USR2);
$SIG{$_} = sub { $stopped = 1 if $_[0] eq 'TERM' } for @signals;

# Each process holds $starting until its exec closes it. An earlier signal would run only
# the handler above, and be lost.
pipe(my $started, my $starting) or die "make a pipe: $!\n";

my (%local, %alive, $status, $failed);
for my $i (0 .. $count - 1) {
	my $pid = fork;
	if (!defined $pid) {
		print STDERR "start process $i: $!\n";
		$status = 1 << 8;
		last;
	}
	if ($pid == 0) {
		$SIG{$_} = 'DEFAULT' for @signals;
		setpgrp(0, 0);
		%ENV = (%env, MULTIHOST_LOCAL_ID => $i, MULTIHOST_PROCESS_ID => $first + $i, JAX_PROCESS_ID => $first + $i);
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>&', 6);
		open(STDERR, '>&', 6);
		open(my $output, '<&=', 6);
		close $output;
		no warnings;
		exec { $command[0] } @command;
		print STDERR "$command[0]: $!\n";
		exec '/bin/sh', '-c', 'exit "$1"', 'sh', $! + 0 == 2 ? 127 : 126;
	}
	setpgrp($pid, $pid); # parent and child both do it, so that it is done before either continues
	$local{$pid} = $i;
	$alive{$pid} = 1;
}
open(my $output, '<&=', 6);
close $output;
close $starting;

while (%alive && (!defined $status || $stopped)) {
	my $pid = waitpid(-1, 0);
	last if $pid < 0 && $! + 0 == 10; # no child is left
	next if $pid < 0 || !delete $alive{$pid} || !$? || defined $status;
	($status, $failed) = ($?, $pid);
	$stopped ||= -e "$env{MULTIHOST_RUN_DIR}/stop";
}
if (defined $failed && open(my $file, '>', "$env{MULTIHOST_RUN_DIR}/failed")) {
	print $file "$local{$failed} $failed\n";
	close $file;
}
if (defined $status && !$stopped) {
	# An exec may hang, for example on a file system that does not answer. Then continue
	# without that process.
	vec(my $descriptors = '', fileno($started), 1) = 1;
	for (my $left = 5; $left > 0;) {
		(my $ready, $left) = select(my $readable = $descriptors, undef, undef, $left);
		last if $ready > 0; # otherwise a signal interrupted select
	}
	my @groups = keys %local;
	ENDING: for (['TERM', $grace / 1000], ['KILL', 10]) {
		my ($signal, $left) = @$_;
		next if $left <= 0;
		for my $group (@groups) {
			kill $signal, -$group;
			kill 'CONT', -$group; # a stopped process gets TERM only when it continues
		}
		while (1) {
			1 while waitpid(-1, 1) > 0;
			last ENDING if !grep { kill 0, -$_ } @groups;
			last if $left <= 0;
			my (undef, $rest) = select(undef, undef, undef, 0.05);
			$left -= 0.05 - $rest;
		}
	}
}
$status //= 0;
if (my $signal = $status & 127) {
	%ENV = ();
	$SIG{$_} = 'DEFAULT' for @signals;
	exec '/bin/sh', '-c', 'ulimit -c 0; kill -"$1" $$; exit "$((128 + $1))"', 'sh', $signal;
}
exit($status >> 8);
