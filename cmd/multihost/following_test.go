package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// TestTroubleOfOursKillsNoCommand cuts the connections to three of four workers. On one of
// the three, the login cannot start a process. On another, the start-up files exit. On the
// third, the log is cut off. The command must run on and end by itself on every worker.
// multihost must report what it tried again, and why.
func TestTroubleOfOursKillsNoCommand(t *testing.T) {
	besideOthers(t)
	if testkit.RaceDetector {
		t.Skip("many programs in one process share the flags of the command library, which one program never does")
	}
	for _, backend := range testkit.Some(t, []string{"netns", "process"}, 2) {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			lab := newLab(t, backend, sim.SliceSpec{Name: "t", Count: 1, Type: "v5litepod-16"})
			// Each trouble happens only once: the start-up files count how often they run.
			testkit.Must(t, os.WriteFile(filepath.Join(lab.code, "train.sh"), []byte(`
echo begin
until [ -e ~/go ]; do sleep 0.1; done
trouble() {
  printf '%s\n' 'echo x >>~/tries' "$2" >~/.bashrc
  echo broken
  while (($(cat ~/tries 2>/dev/null | wc -l) < $1)); do sleep 0.2; done
  rm ~/.bashrc
}
# What bash does when it can start no process. With a real limit it tries for 15 s,
# and may start one after all when the command has ended.
limit='echo "bash: fork: Resource temporarily unavailable" >&2; exit 254'
case $MULTIHOST_WORKER_ID in
1) trouble 2 "$limit" ;; # the first one may be the measurement of the clock
2) trouble 3 'echo garbage; exit 3' ;;
3) : >~/.multihost/runs/r/1/output.log ;;
esac
sleep 2
echo end
`), 0o600))
			var stdout, stderr transcript
			p := lab.program(&stdout, &stderr)
			ended := make(chan int, 1)
			logs := filepath.Join(lab.dir, "logs")
			log := func(worker string) string {
				data, _ := os.ReadFile(filepath.Join(logs, "output_slice_0000_worker_000"+worker+".txt"))
				return string(data)
			}
			go func() {
				ended <- p.run([]string{"run", "--tpu-prefix=t", "--run-name=r", "--script-dir=" + lab.code, "--log-dir=" + logs, "--preflight=off",
					"--stream=none", "--command=bash train.sh"})
			}()
			defer func() { t.Log(stderr.String()) }()
			have := func(word string, workers ...string) func() bool {
				return func() bool {
					return !slices.ContainsFunc(workers, func(w string) bool { return !strings.Contains(log(w), word) })
				}
			}
			testkit.Eventually(t, "all have begun", have("begin", "0", "1", "2", "3"))
			var told transcript
			if status := lab.program(&told, &told).run([]string{"exec", "--tpu-prefix=t", "--command=touch ~/go"}); status != 0 {
				t.Fatalf("exec ended with %d:\n%s", status, told.String())
			}
			testkit.Eventually(t, "logins are broken", have("broken", "1", "2"))
			for _, w := range []string{"1", "2"} {
				lab.inject(t, "t", "worker-unreachable mode=refuse duration=300ms worker="+w)
			}
			select {
			case status := <-ended:
				if status != 0 {
					t.Errorf("ended with %d", status)
				}
			case <-time.After(2 * scriptWait):
				t.Fatal("has not ended")
			}
			for _, want := range []string{
				"cannot follow s0w1 (follow: no answer (exit code 254): ",
				"cannot follow s0w2 (follow: no answer (exit code 3): garbage); the command goes on there, trying again",
				"the output on s0w3 was cut",
				"run r succeeded on all 4 workers",
			} {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("is not said: %s", want)
				}
			}
			if strings.Contains(stderr.String(), "stopping run") {
				t.Error("the run was stopped")
			}
			for w, want := range []string{"begin\nend\n", "begin\nbroken\nend\n", "begin\nbroken\nend\n"} {
				if got := log(strconv.Itoa(w)); got != want {
					t.Errorf("log of worker %d: %q", w, got)
				}
			}
			if got := log("3"); !strings.HasPrefix(got, "begin\n") || strings.Count(got, "begin") != 1 {
				t.Errorf("log of worker 3: %q", got)
			}
		})
	}
}
