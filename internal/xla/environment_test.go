package xla

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestMerge(t *testing.T) {
	preset := Args{Names: []string{"P"}, Flags: []string{"--a=1", "--b=true"}}
	for _, tc := range []struct {
		user    string
		preset  Args
		extra   []string
		want    string
		changed []string
	}{
		{"", Args{}, nil, "", nil},
		{"  --a=0   stray ", Args{}, nil, "  --a=0   stray ", nil},
		{"", preset, nil, "--a=1 --b=true", nil},
		{"--x=1", preset, nil, "--x=1 --a=1 --b=true", nil},
		{"--a=0 --x='y z' stray", preset, nil, "--x='y z' stray --a=1 --b=true", []string{"--a=0 replaced by --a=1 of P"}},
		{"--b=True", preset, nil, "--a=1 --b=true", nil},
		{"--a=0", preset, []string{"a=2 --c=3"}, "--b=true --a=2 --c=3", []string{"--a=0 replaced by --a=1 of P", "--a=1 replaced by --a=2 of --xla-flag"}},
		{"--a=0 --a=5", Args{}, []string{"-c=3"}, "--a=5 --c=3", []string{"--a=0 replaced by --a=5 of the environment"}},
	} {
		got, report := Merge(tc.user, tc.preset, tc.extra)
		var changed []string
		for _, c := range report.Changed {
			changed = append(changed, c.String())
		}
		if got != tc.want || !slices.Equal(changed, tc.changed) {
			t.Errorf("Merge(%q, %v, %q) = %q, %q; want %q, %q", tc.user, tc.preset.Flags, tc.extra, got, changed, tc.want, tc.changed)
		}
		if n := len(report.Kept) + len(report.Added); n != len(Words(got)) {
			t.Errorf("Merge(%q): the report has %d words of %d", tc.user, n, len(Words(got)))
		}
	}
}

// An error that does not depend on the workers is found before a worker is known.
func TestCheckNames(t *testing.T) {
	for _, tc := range []struct {
		r    Request
		want string // a part of the error; "": none
	}{
		{Request{Presets: []string{"v5e/128b,DATA_PARALLEL_OVERLAP"}, Flags: []string{"xla_mine=1"}}, ""},
		{Request{Presets: []string{"128b"}}, ""}, // of v5e or of v5p: only the workers know
		{Request{Presets: []string{"128b"}, Generation: "v5p"}, ""},
		{Request{Presets: []string{"v5e/128b,v5e/129x"}}, `find XLA preset "v5e/129x"`},
		{Request{Presets: []string{"128b"}, Generation: "v4"}, "no such preset"},
		{Request{Flags: []string{"LIBTPU_INIT_ARGS=--a=1"}}, "it is a variable, no flag"},
	} {
		err := Load().CheckNames(tc.r)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("CheckNames(%q, %q, %q) = %v, want %q", tc.r.Presets, tc.r.Flags, tc.r.Generation, err, tc.want)
		}
	}
}

// TestMergeKeepsEveryPreset merges each preset into each of some texts. The result must
// have every word of both, and reading it must give the same again.
func TestMergeKeepsEveryPreset(t *testing.T) {
	c := Load()
	for _, p := range c.Presets() {
		for _, user := range []string{"", "--xla_mine=1", "--xla_enable_async_all_gather=false --xla_mine='a b'"} {
			text, _ := Merge(user, Args{Names: []string{p.Name}, Flags: p.Flags}, nil)
			words := Words(text)
			for _, f := range p.Flags {
				if !slices.Contains(words, f) {
					t.Errorf("%s into %q: %s is not in %q", p.Name, user, f, text)
				}
			}
			if user != "" && len(p.Flags) > 0 && !strings.Contains(text, "--xla_mine=") {
				t.Errorf("%s into %q: what the user had is lost: %q", p.Name, user, text)
			}
		}
	}
}

func environ(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func TestEnvironment(t *testing.T) {
	c := Load()
	b := "--xla_tpu_enable_data_parallel_all_reduce_opt=true --xla_tpu_data_parallel_opt_different_sized_ops=true" +
		" --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true" +
		" --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true --xla_enable_async_all_gather=true"
	for _, tc := range []struct {
		name  string
		r     Request
		vars  []Var
		rules []string // rules of the errors and warnings
	}{
		{"nothing", Request{Generation: "v5e"}, nil, nil},
		{"a preset", Request{Presets: []string{"v5e/128b"}, Generation: "v5e"}, []Var{{LibtpuInitArgs, b}}, nil},
		{"the user's are kept", Request{User: environ(LibtpuInitArgs, "--xla_dump_to=/x"), Presets: []string{"v5e/128b"}, Flags: []string{"xla_tpu_rwb_fusion=false"}, Generation: "v5e"},
			[]Var{{LibtpuInitArgs, "--xla_dump_to=/x " + b + " --xla_tpu_rwb_fusion=false"}}, nil},
		{"the user's alone are checked", Request{User: environ(LibtpuInitArgs, "---xla_dump_to=/x"), Generation: "v5e"}, nil, []string{RuleDashes}},
		{"another generation", Request{Presets: []string{"v5e/128b"}, Generation: "v6e"}, []Var{{LibtpuInitArgs, b}}, []string{RuleGeneration}},
		{"unlike groups", Request{Presets: []string{"CF_FOR_ALL_GATHER,ENABLE_SPARSECORE_OFFLOADING_BASE_FLAGS"}, Flags: []string{offloadPrefix + "all_gather=true"}, Generation: "v6e"}, nil, []string{RuleExclusive}},
		{"variables only", Request{User: environ("TPU_MIN_LOG_LEVEL", "3", "TPU_STDERR_LOG_LEVEL", "0"), Presets: []string{"DEBUG_LOGS"}, Generation: "v4"},
			[]Var{{"TF_CPP_MIN_LOG_LEVEL", "0"}, {"TPU_VMODULE", "tpu_configuration_ops_impl=3"}}, []string{RuleKept}},
		{"a GPU preset on hosts", Request{Presets: []string{"JAX_GPU_TIPS", "NCCL_SINGLE_HOST"}, Hosts: true},
			[]Var{{XLAFlags, "--xla_gpu_triton_gemm_any=True --xla_gpu_enable_latency_hiding_scheduler=true"}, {"NCCL_LL128_BUFFSIZE", "-2"}, {"NCCL_LL_BUFFSIZE", "-2"}, {"NCCL_PROTO", "SIMPLE,LL,LL128"}}, nil},
		{"a GPU flag on hosts", Request{User: environ(XLAFlags, "--xla_dump_to=/x"), Flags: []string{"xla_gpu_triton_gemm_any=true"}, Hosts: true},
			[]Var{{XLAFlags, "--xla_dump_to=/x --xla_gpu_triton_gemm_any=true"}}, nil},
		{"a TPU preset on hosts", Request{Presets: []string{"v4/22b"}, Hosts: true}, []Var{{LibtpuInitArgs, "--xla_enable_async_all_gather=true"}}, nil},
		{"flags in the wrong variable", Request{User: environ(XLAFlags, "--xla_tpu_rwb_fusion=false"), Generation: "v5e"}, nil, []string{RulePlatform}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := c.Environment(tc.r)
			if err != nil {
				t.Fatal(err)
			}
			if tc.name != "unlike groups" && !slices.Equal(e.Vars, tc.vars) {
				t.Errorf("vars %q, want %q", e.Vars, tc.vars)
			}
			var rules []string
			for _, f := range e.Findings {
				if f.Severity != Info {
					rules = append(rules, f.Rule)
				}
			}
			if !slices.Equal(rules, tc.rules) {
				t.Errorf("findings %v, want rules %q", e.Findings, tc.rules)
			}
			if len(e.Lines()) < len(tc.vars) {
				t.Errorf("lines %q", e.Lines())
			}
		})
	}
}

func TestEnvironmentRefuses(t *testing.T) {
	c := Load()
	for _, r := range []Request{
		{Flags: []string{""}},
		{Flags: []string{"TPU_X=1"}, Generation: "v5e"},
		{Flags: []string{"xla_tpu_scoped_vmem_limit_kib"}, Generation: "v5e"},
		{Flags: []string{"xla_tpu_overlap_compute_collective_tc=ture"}},
		{Flags: []string{"xla_gpu_triton_gemm_any=true"}, Generation: "v5e"},
		{Presets: []string{"v5e/128b"}, Flags: []string{"xla_gpu_triton_gemm_any=true"}, Hosts: true},
	} {
		_, err := c.Environment(r)
		var e *FlagError
		if !errors.As(err, &e) || e.Hint() == "" {
			t.Errorf("Environment(%+v): %v", r, err)
		}
	}
	for _, r := range []Request{
		{Presets: []string{"a3/llama_2_7b/1vm"}, Generation: "v5e"},
		{Presets: []string{"a3/llama_2_7b/1vm"}},
		{Presets: []string{"NCCL_SINGLE_HOST", "v5e/16b"}, Hosts: true},
	} {
		_, err := c.Environment(r)
		var e *MismatchError
		if !errors.As(err, &e) || e.Hint() == "" {
			t.Errorf("Environment(%+v): %v", r, err)
		}
	}
	var e *NameError
	if _, err := c.Environment(Request{Presets: []string{"v5e/12b"}}); !errors.As(err, &e) {
		t.Errorf("Environment of a misspelt preset: %v", err)
	}
}
