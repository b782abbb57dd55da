// Package pod is the agent as process 1 of a workload's container. Run starts the command,
// keeps the exact bytes of its output and tells the cluster how it ended. Tail sends these
// bytes to a follower, from an offset on. Acknowledge says how many bytes the follower has.
// Run waits until it has all.
//
// Files in the folder of a container:
//
//	output.log   stdout and stderr of the command, in the order in which they were written
//	followed     exists once a follower has begun to read
//	end          the End, when output.log is complete
//	ack          the number of bytes that a follower has
//
// # Decisions
//
//   - The command writes to a pipe, not to the file, because a program that opens
//     /dev/stdout would empty a file. Run writes the output first to the file, then to the
//     container's own output, which `kubectl logs` shows.
//   - Signals go to the whole process group of the command. A shell does not pass a signal
//     on, and ends before the program that writes its last checkpoint. So after a signal to
//     stop, Run waits until every process is gone. The kubelet limits that wait by the
//     grace period.
//   - If a command ends with 0 after a signal to stop, the container ends with 143. With 0,
//     the cluster would believe that the worker has done its work. After a preemption by
//     Kueue, it would then not start this worker again.
//   - Run writes the termination message before it waits for the follower, because the
//     kubelet may kill the container during the wait.
//   - A follower hears of a pod only after some seconds, and a command may fail earlier. So
//     Run waits some seconds for the first follower. It does not wait longer for a follower
//     that may never come, because pods hold slices, which cost money.
package pod
