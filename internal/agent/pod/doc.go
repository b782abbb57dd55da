// Package pod is the agent as process 1 of a container of a workload. Run starts the command,
// keeps the exact bytes of its output and tells the cluster how it ended. Tail sends these
// bytes to a follower, by their offset, and Acknowledge ends the wait of Run for it.
//
// In the folder of a container:
//
//	output.log   stdout and stderr of the command, in the order in which they were written
//	followed     exists once a follower has begun to read
//	end          the End, when output.log is complete
//	ack          the number of bytes that a follower has
//
// # Decisions
//
//   - The command writes to a pipe, not to the file: a program that opens /dev/stdout would
//     empty a file. Run writes the output first to the file and then to the container's own
//     output, which `kubectl logs` shows.
//   - Signals go to the whole process group of the command. A shell does not pass a signal
//     on, and ends before the program that writes its last checkpoint. So after a signal to
//     stop, Run waits until every process is gone; the kubelet limits that by the grace
//     period.
//   - A command that ends with 0 after a signal to stop ends the container with 143. With
//     0, the cluster would take the worker for one that has done its work. After a
//     preemption by Kueue, it would then not start this worker again.
//   - The termination message is written before the wait for the follower: the kubelet may
//     kill the container during the wait.
//   - Run waits only if there has been a follower, or may soon be one: a follower hears of a
//     pod within seconds, and a command may fail before that. Pods hold slices, which are
//     billed. So Run does not wait longer than that for a follower that may never come.
package pod
