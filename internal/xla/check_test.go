package xla

import (
	"slices"
	"strings"
	"testing"
)

// TestCheck has faulty texts from MaxText's scripts and documents, and texts as people type
// them.
func TestCheck(t *testing.T) {
	c := Load()
	const fuseAG, offloadAG = "--" + fusePrefix + "all_gather", "--" + offloadPrefix + "all_gather"
	for _, tc := range []struct {
		name, text, generation string
		severity               Severity
		rule, instead          string // rule and correction of the first finding of that severity
		corrected              string // "": unchanged
	}{
		{"three dashes, as the tuning guide prints it", "---xla_tpu_scoped_vmem_limit_kib=65536", "v6e",
			Error, RuleDashes, "--xla_tpu_scoped_vmem_limit_kib=65536", "--xla_tpu_scoped_vmem_limit_kib=65536"},
		{"one dash", "-xla_enable_async_all_gather=true", "v5e", Error, RuleDashes, "--xla_enable_async_all_gather=true", "--xla_enable_async_all_gather=true"},
		{"a dash of a word processor", "–xla_enable_async_all_gather=true", "", Error, RuleDashes, "--xla_enable_async_all_gather=true", "--xla_enable_async_all_gather=true"},
		{"the variable inside the flags of v4/22b", "--xla_enable_async_all_gather=true TPU_MEGACORE=MEGACORE_DENSE", "v4",
			Error, RuleNotAFlag, "--env=TPU_MEGACORE=MEGACORE_DENSE", "--xla_enable_async_all_gather=true"},
		{"no dashes", "xla_enable_async_all_gather=true", "v4", Error, RuleNotAFlag, "--xla_enable_async_all_gather=true", "--xla_enable_async_all_gather=true"},
		{"a value apart", "--xla_tpu_scoped_vmem_limit_kib 65536", "v6e", Error, RuleNoValue, "--xla_tpu_scoped_vmem_limit_kib=VALUE", "--xla_tpu_scoped_vmem_limit_kib=65536"},
		{"a boolean apart", "--xla_enable_async_all_gather true", "v6e", Error, RuleNotAFlag, "--xla_enable_async_all_gather=true", "--xla_enable_async_all_gather=true"},
		{"a backslash of a continued line", `--xla_enable_async_all_gather=true \`, "", Error, RuleNotAFlag, "", "--xla_enable_async_all_gather=true"},
		{"commas", "--xla_enable_async_all_gather=true,--xla_tpu_overlap_compute_collective_tc=true", "",
			Error, RuleCommas, "--xla_enable_async_all_gather=true --xla_tpu_overlap_compute_collective_tc=true", "--xla_enable_async_all_gather=true --xla_tpu_overlap_compute_collective_tc=true"},
		{"no value, as in the gemma scripts", "--xla_tpu_assign_all_reduce_scatter_layout", "v6e",
			Warning, RuleNoValue, "--xla_tpu_assign_all_reduce_scatter_layout=true", "--xla_tpu_assign_all_reduce_scatter_layout=true"},
		{"no number", "--xla_tpu_scoped_vmem_limit_kib", "v6e", Error, RuleNoValue, "--xla_tpu_scoped_vmem_limit_kib=VALUE", ""},
		{"twice, as in v5p/32b", fuseAG + "=true " + fuseAG + "=false", "v5p", Warning, RuleDuplicate, fuseAG + "=false", fuseAG + "=false"},
		{"twice, as in llama3-70b", "--xla_tpu_scheduler_percent_shared_memory_limit=100 --xla_tpu_scheduler_percent_shared_memory_limit=90", "v6e",
			Warning, RuleDuplicate, "--xla_tpu_scheduler_percent_shared_memory_limit=90", "--xla_tpu_scheduler_percent_shared_memory_limit=90"},
		{"twice the same in other words", fuseAG + "=True " + fuseAG + "=true", "v5p", Info, RuleDuplicate, "", fuseAG + "=true"},
		{"both mechanisms, v5p keeps fusion", fuseAG + "=true " + offloadAG + "=true", "v5p", Error, RuleExclusive, offloadAG + "=false", fuseAG + "=true " + offloadAG + "=false"},
		{"both mechanisms, tpu7x keeps the SparseCore", fuseAG + "=true " + offloadAG + "=True", "tpu7x", Error, RuleExclusive, fuseAG + "=false", fuseAG + "=false " + offloadAG + "=True"},
		{"the last value counts", fuseAG + "=true " + offloadAG + "=true " + fuseAG + "=false", "v5p", Warning, RuleDuplicate, fuseAG + "=false", offloadAG + "=true " + fuseAG + "=false"},
		{"offload by default", fuseAG + "=true", "tpu7x", Warning, RuleExclusive, fuseAG + "=false", ""},
		{"a GPU flag on a TPU", "--xla_gpu_enable_triton_gemm=false --xla_enable_async_all_gather=true", "v5e", Error, RulePlatform, "", "--xla_enable_async_all_gather=true"},
		{"an unheard-of GPU flag on a TPU", "--xla_gpu_brand_new=1", "", Error, RulePlatform, "", " "},
		{"a TPU flag on a GPU", "--xla_tpu_overlap_compute_collective_tc=true", GPU, Error, RulePlatform, "", " "},
		{"vector memory of v5p", "--xla_tpu_scoped_vmem_limit_kib=98304", "v5p", Warning, RuleVMEM, "--xla_tpu_scoped_vmem_limit_kib=65536", ""},
		{"vector memory of v5e", "--xla_tpu_scoped_vmem_limit_kib=98304", "v5e", Warning, RuleVMEM, "--xla_tpu_scoped_vmem_limit_kib=65536", ""},
		{"vector memory of v6e", "--xla_tpu_scoped_vmem_limit_kib=131073", "v6e", Warning, RuleVMEM, "--xla_tpu_scoped_vmem_limit_kib=131072", ""},
		{"vector memory of v4", "--xla_tpu_scoped_vmem_limit_kib=16385", "v4", Warning, RuleVMEM, "--xla_tpu_scoped_vmem_limit_kib=16384", ""},
		{"graph level off", "--xla_gpu_graph_level=0", GPU, Warning, RuleRetired, "--xla_gpu_enable_command_buffer=", "--xla_gpu_enable_command_buffer="},
		{"graph level on", "--xla_gpu_graph_level=2", GPU, Warning, RuleRetired, "--xla_gpu_enable_command_buffer=…", ""},
		{"pipelined", "--xla_gpu_enable_pipelined_all_reduce=true", GPU, Warning, RuleRetired, "--xla_gpu_pipeline_all_reduce=on", "--xla_gpu_pipeline_all_reduce=on"},
		{"not pipelined", "--xla_gpu_enable_pipelined_all_gather=false", GPU, Warning, RuleRetired, "--xla_gpu_pipeline_all_gather=off", "--xla_gpu_pipeline_all_gather=off"},
		{"a chip configuration", "--2a886c8_chip_config_name=megachip_tccontrol", "v6e", Warning, RuleRetired, "", " "},
		{"SparseCore on v4", "--xla_sc_disjoint_spmem=false", "v4", Warning, RuleSparseCore, "", ""},
		{"SparseCore on v5e", "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true", "v5e", Warning, RuleSparseCore, "", ""},
		{"misspelt", "--xla_tpu_enable_async_colective_fusion=true", "v6e", Warning, RuleUnknown, "--xla_tpu_enable_async_collective_fusion=true", ""},
		{"hyphens", "--xla-enable-async-all-gather=true", "v6e", Warning, RuleUnknown, "--xla_enable_async_all_gather=true", ""},
		{"unheard of", "--xla_tpu_brand_new_thing=true", "v6e", Info, RuleUnknown, "", ""},
		{"no boolean", "--xla_tpu_overlap_compute_collective_tc=ture", "v6e", Error, RuleValue, "--xla_tpu_overlap_compute_collective_tc=VALUE", " "},
		{"no boolean, by guess", "--xla_tpu_rwb_fusion=kAuto", "v6e", Warning, RuleValue, "--xla_tpu_rwb_fusion=VALUE", ""},
		{"blanks in a list", "--xla_disable_hlo_passes='a, b'", GPU, Error, RuleValue, "--xla_disable_hlo_passes=VALUE", " "},
		{"only dashes", "--", "", Error, RuleNotAFlag, "", " "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			findings := c.Check(tc.text, tc.generation)
			if got := Worst(findings); got != tc.severity {
				t.Errorf("severity %q, want %q: %v", got, tc.severity, findings)
			}
			i := slices.IndexFunc(findings, func(f Finding) bool { return f.Severity == tc.severity && f.Rule == tc.rule })
			if i < 0 {
				t.Fatalf("no finding of rule %s: %v", tc.rule, findings)
			}
			if findings[i].Instead != tc.instead {
				t.Errorf("instead %q, want %q", findings[i].Instead, tc.instead)
			}
			want := strings.TrimSpace(tc.corrected)
			if tc.corrected == "" && !strings.Contains(tc.name, "no number") {
				want = tc.text
			}
			if got := c.Correct(tc.text, tc.generation); got != want {
				t.Errorf("Correct = %q, want %q", got, want)
			}
		})
	}
}

func TestCheckFindsNothing(t *testing.T) {
	c := Load()
	for _, tc := range []struct{ text, generation string }{
		{"", "v5e"},
		{" \n\t", "v5e"},
		{"--xla_enable_async_all_gather=kAuto", "v5e"},
		{"--xla_tpu_scoped_vmem_limit_kib=65536", "tpu7x"},
		{"--xla_tpu_scoped_vmem_limit_kib=98304", "v6e"},
		{"--xla_tpu_scoped_vmem_limit_kib=98304", ""},
		{"--xla_gpu_enable_command_buffer='' --xla_dump_to='/tmp/a b'", GPU},
		{"--xla_dump_to=/tmp/x", "v5e"},
		{"--" + fusePrefix + "all_gather=true --" + offloadPrefix + "all_reduce=true", "v6e"},
		{"--" + fusePrefix + "all_gather=true --" + offloadPrefix + "all_gather=false", "tpu7x"},
	} {
		if w := Worst(c.Check(tc.text, tc.generation)); w == Error || w == Warning {
			t.Errorf("Check(%q, %q) = %v", tc.text, tc.generation, c.Check(tc.text, tc.generation))
		}
	}
}

func TestCheckSaysWhatIsAdded(t *testing.T) {
	c := Load()
	count := func(text string) int {
		n := 0
		for _, f := range c.Check(text, "v5e") {
			if f.Rule == RuleAdded {
				n++
			}
		}
		return n
	}
	if count("--xla_enable_async_all_gather=true") != 2 || count("--xla_tpu_use_enhanced_launch_barrier=false") != 1 || count("") != 0 {
		t.Error("flags that come in by themselves are not said, or too often")
	}
}

func TestFindingString(t *testing.T) {
	f := Finding{Severity: Error, Flag: "---a=1", Text: "a flag begins with exactly two dashes", Instead: "--a=1", Where: "train.sh:3"}
	if got, want := f.String(), "train.sh:3: ---a=1: a flag begins with exactly two dashes; type instead: --a=1"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}

func FuzzFlags(f *testing.F) {
	for _, s := range []string{
		"", "--a=1 --b", "---xla_tpu_scoped_vmem_limit_kib=1", `--x='a b' --y="c`, "a=' b=' c", "--xla_enable_async_all_gather=true,--b=c",
		"TPU_MEGACORE=MEGACORE_DENSE", "--xla_enable_async_all_gather true", "– — -x", "--xla_tpu_enable_async_colective_fusion=1", "--=", "-- --=x",
	} {
		f.Add(s, uint8(0))
	}
	c := Load()
	generations := []string{"", "v4", "v5e", "v5p", "v6e", "tpu7x", GPU}
	f.Fuzz(func(t *testing.T, text string, g uint8) {
		if len(text) > 2000 {
			return
		}
		generation := generations[int(g)%len(generations)]
		words := Words(text)
		if again := Words(strings.Join(words, " ")); !slices.Equal(words, again) {
			t.Errorf("the words of %q are %q, and again %q", text, words, again)
		}
		for _, w := range words {
			if parseWord(w).text != w {
				t.Errorf("word %q changes when read", w)
			}
		}
		corrected := c.Correct(text, generation)
		for _, finding := range c.Check(corrected, generation) {
			if finding.Severity == Error {
				t.Errorf("%q corrected to %q still has: %v", text, corrected, finding)
			}
		}
		merged, _ := Merge(text, Args{Flags: []string{"--xla_enable_async_all_gather=true"}}, []string{"xla_tpu_rwb_fusion=false"})
		if again, _ := Merge(merged, Args{Flags: []string{"--xla_enable_async_all_gather=true"}}, []string{"xla_tpu_rwb_fusion=false"}); again != merged {
			t.Errorf("merging twice: %q, then %q", merged, again)
		}
		if same, _ := Merge(text, Args{}, nil); same != text {
			t.Errorf("merging nothing into %q gives %q", text, same)
		}
	})
}
