package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"multihost/internal/launch"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// An error of a command line that does not depend on the workers ends the command before
// the first request. This holds for run, for an attached job and for a job without runner,
// with and without --dry-run. A later error would come while slices are billed.
func TestWhatIsWrongOnTheCommandLineIsRefusedBeforeTheFirstRequest(t *testing.T) {
	r := newRehearsal(t, sim.Config{Slices: []sim.SliceSpec{{Name: "t", Type: "v5litepod-4", Count: 1}}, Backend: "none", Faults: []sim.Fault{{Name: "api-error", Code: 400, Count: sim.AllCalls}}})
	r.write("code/train.py", "print(1)\n")
	r.write("file", "this is no key\n")
	r.write("logs/output_slice_0000_worker_0000.txt", "of another run\n")
	r.write("shell.env", "SHELLOPTS=xtrace\n")
	r.write("nul.env", "NUL=a\x00b\n")
	r.write("pins", "no pin at all\n")
	r.env["BIG"] = strings.Repeat("b", 128<<10)
	r.env["PPID"], r.env["SECRET"] = "1", "s3cret"
	long := strings.Repeat("n", 230)

	type refusal struct {
		name   string
		status int
		says   string
		args   []string
		only   string // "run", "job" or "detach"; "" means all
	}
	command := []string{"--command=true"}
	with := func(args ...string) []string { return append(slices.Clone(command), args...) }
	all := []refusal{
		{"a name that is none", exitUsage, `"A-B"`, with("--env=A-B=1"), ""},
		{"no assignment", exitUsage, `"NOVALUE"`, with("--env=NOVALUE"), ""},
		{"a name of a worker's script", exitUsage, `"mh_words"`, with("--env=mh_words=1"), ""},
		{"a name of ours", exitUsage, `"MULTIHOST_RUN"`, with("--env=MULTIHOST_RUN=1"), ""},
		{"NUL in a value", exitUsage, `NUL byte`, with("--env=A=a\x00b"), ""},
		{"NUL in a script", exitUsage, `NUL byte`, []string{"--command=true\x00"}, ""},
		{"NUL in a word", exitUsage, `NUL byte`, []string{"--", "echo", "a\x00b"}, ""},
		{"a value beyond 128 KiB", exitUsage, `"A"`, with("--env=A=" + strings.Repeat("a", 128<<10)), ""},
		{"a word beyond 128 KiB", exitUsage, `131072 bytes`, []string{"--", "echo", strings.Repeat("a", 128<<10)}, ""},
		{"a file with a name that bash owns", exitUsage, `"SHELLOPTS"`, with("--env-file=$DIR/shell.env"), ""},
		{"a file with NUL", exitConfig, `nul.env`, with("--env-file=$DIR/nul.env"), ""},
		{"no env file", exitConfig, `nowhere.env`, with("--env-file=$DIR/nowhere.env"), ""},
		{"a secret that bash owns", exitUsage, `"PPID"`, with("--secret-env=PPID"), ""},
		{"a stored secret that bash owns", exitUsage, `"PPID"`, with("--secret-env=PPID=sm://my-project/key"), ""},
		{"a secret that is not set", exitUsage, `"UNSET"`, with("--secret-env=UNSET"), ""},
		{"a secret that is too long", exitUsage, `"BIG"`, with("--secret-env=BIG"), ""},
		{"a secret of this machine", exitUsage, `"SECRET"`, with("--secret-env=SECRET"), "detach"},
		{"a stored secret that is none", exitUsage, `sm:`, with("--secret-env=A=sm://p"), ""},
		{"a run name that leaves its directory", exitUsage, `"../x"`, with("--run-name=../x"), ""},
		{"a run name that no file can have", exitUsage, `230 bytes: at most 229`, with("--run-name=" + long), ""},
		{"a name too long for a queued resource", exitUsage, `at most 63`, with("--run-name=" + strings.Repeat("n", 64)), "job"},
		{"nothing to run", exitUsage, `nothing to run`, nil, ""},
		{"no directory", exitUsage, `nowhere`, with("--script-dir=$DIR/nowhere"), ""},
		{"a file for a directory", exitUsage, `no directory`, with("--script-dir=$DIR/file"), ""},
		{"a key that is none", exitConfig, `file`, with("--identity-file=$DIR/file"), ""},
		{"no key", exitConfig, `nowhere`, with("--identity-file=$DIR/nowhere"), ""},
		{"host keys that are none", exitConfig, `pins`, with("--known-hosts=$DIR/pins"), ""},
		{"a file for a log directory", exitIO, `not a directory`, with("--log-dir=$DIR/file/logs"), "attached"},
		{"logs of another run", exitUsage, `logs of another run`, with("--log-dir=$DIR/logs"), "job attached"},
		{"an unknown preset", exitUsage, `nonesuch`, with("--xla-preset=nonesuch"), ""},
		{"a variable for a flag", exitUsage, `it is a variable`, with("--xla-flag=TPU_MEGACORE=1"), ""},
		{"a flag of GPUs", exitUsage, `a flag of GPUs`, with("--xla-flag=--xla_gpu_enable_triton_gemm=false"), "job"},
		{"a preset of GPUs", exitUsage, `a3/llama_2_7b/1vm`, with("--xla-preset=a3/llama_2_7b/1vm"), "job"},
		{"flags beyond 128 KiB", exitUsage, `LIBTPU_INIT_ARGS`, with("--xla-flag=--xla_tpu_brand_new=" + strings.Repeat("a", 128<<10)), "job"},
		{"NUMA where it does not help", exitUsage, `v4 and v5p`, with("--numa=bind"), "job"},
		{"an unknown NUMA word", exitUsage, `numa`, with("--numa=maybe"), ""},
		{"an unknown preflight", exitUsage, `preflight`, with("--preflight=maybe"), ""},
		{"an unknown relay", exitUsage, `relay`, with("--relay=maybe"), ""},
		{"a size that is none", exitUsage, `max-log`, with("--max-log=much"), ""},
		{"a negative grace", exitUsage, `grace`, with("--grace=-1s"), ""},
		{"a bucket that is none", exitUsage, `"No_Bucket!"`, with("--detach", "--bucket-name=No_Bucket!"), "detach"},
		{"a bucket's directory that is none", exitUsage, `"a b"`, with("--bucket-dir=a b"), "detach"},
		{"an unknown type", exitUsage, `v9`, with("--tpu-type=v9-8"), "job"},
		{"a login that is none", exitUsage, `--user=A b`, with("--user=A b"), ""},
		{"a program to notify that is none", exitUsage, `--notify`, with("--notify='open"), "attached"},
	}
	for _, name := range namesThatNoWorkerExports(t) {
		all = append(all, refusal{"no worker exports " + name, exitUsage, `"` + name + `"`, with("--env=" + name + "=1000"), ""})
	}
	if os.Geteuid() != 0 { // root could read every file
		r.write("closed/secret", "x")
		testkit.Must(t, os.Chmod(filepath.Join(r.dir, "closed"), 0))
		all = append(all, refusal{"a directory that cannot be read", exitIO, "closed", with("--script-dir=$DIR/closed"), ""})
	}

	ways := []struct {
		name string
		args []string
	}{
		{"run", []string{"run", "--tpu-prefix=t"}},
		{"job attached", []string{"job", "--tpu-type=v5litepod-4", "--run-name=wrong"}},
		{"job detach", []string{"job", "--tpu-type=v5litepod-4", "--run-name=wrong", "--detach", "--bucket-name=" + sim.DefaultBucket}},
	}
	for _, tc := range all {
		for _, way := range ways {
			attached := !strings.HasSuffix(way.name, "detach")
			switch tc.only {
			case "attached":
				if !attached {
					continue
				}
			default:
				if !strings.Contains(way.name, tc.only) {
					continue
				}
			}
			for _, dry := range []bool{true, false} {
				args := slices.Concat(way.args, []string{"--script-dir=$DIR/code"})
				if dry {
					args = append(args, "--dry-run")
				}
				for _, a := range tc.args { // the flag would be refused because it is given twice
					name, _, _ := strings.Cut(a, "=")
					args = slices.DeleteFunc(args, func(have string) bool { return strings.HasPrefix(have, name+"=") || have == name })
				}
				args = append(args, tc.args...)
				t.Run(strings.ReplaceAll(tc.name+"/"+strings.Join(args[:1], ""), " ", "_"), func(t *testing.T) {
					since := len(r.server.Requests())
					status, _, stderr := r.do(args...)
					if status != tc.status || !strings.Contains(errorLine(stderr), tc.says) {
						t.Errorf("%.300q ended with %d, want %d and %q:\n%.2000s", args, status, tc.status, tc.says, stderr)
					}
					for _, q := range r.server.Requests()[since:] {
						t.Errorf("%.300q sent %s %s first", args, q.Method, q.Path)
					}
				})
			}
		}
	}
}

// namesThatNoWorkerExports returns the variables that the start of a command refuses. It
// tries all variables of bash and all words in the scripts that start a command on a
// worker.
func namesThatNoWorkerExports(t *testing.T) []string {
	t.Helper()
	spec := launch.Spec{Run: "r", Attempt: 1, Owner: "o", WorkDir: "r", Script: "true"}
	kit, err := spec.Kit()
	testkit.Must(t, err)
	out, err := exec.Command("bash", "--norc", "--noprofile", "-c", "f() { compgen -v; }; f x").Output()
	testkit.Must(t, err)
	text := string(out)
	for _, script := range kit.Scripts {
		text += script
	}
	names := regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`).FindAllString(text, -1)
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		one := spec
		one.Env = []launch.EnvVar{{Name: name, Value: "1000"}}
		return one.Validate() == nil
	})
	for _, name := range []string{"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "MULTIHOST_RUN"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not among %v", name, names)
		}
	}
	return names
}
