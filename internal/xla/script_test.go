package xla

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestScanScript(t *testing.T) {
	c := Load()
	for _, tc := range []struct {
		name, script string
		want         []string // place and rule
	}{
		{"a launcher", "set -e\nexport LIBTPU_INIT_ARGS=\"--xla_enable_async_all_gather=true\"\npython3 train.py\n", []string{"x.sh:2 overwrites"}},
		{"over several lines", "export LIBTPU_INIT_ARGS=\"--xla_enable_async_all_gather=true \\\n  ---xla_tpu_rwb_fusion=true\\\n\"\n", []string{"x.sh:1 overwrites", "x.sh:1 dashes"}},
		{"v4/22b", `export LIBTPU_INIT_ARGS="--xla_enable_async_all_gather=true TPU_MEGACORE=MEGACORE_DENSE"`, []string{"x.sh:1 overwrites", "x.sh:1 not-a-flag"}},
		{"inline", "LIBTPU_INIT_ARGS=--xla_tpu_rwb_fusion python3 train.py", []string{"x.sh:1 overwrites", "x.sh:1 no-value"}},
		{"env", `cd src && env A=b LIBTPU_INIT_ARGS='--xla_enable_async_all_gather=true' python3 train.py`, []string{"x.sh:1 overwrites"}},
		{"single quotes inside", `bash -c 'export LIBTPU_INIT_ARGS="--xla_gpu_x=1" && python3 t.py'`, []string{"x.sh:1 overwrites", "x.sh:1 platform"}},
		{"escaped quotes inside", `bash -c "export LIBTPU_INIT_ARGS=\"---xla_dump_to=/x --xla_tpu_rwb_fusion=true\" && python3 t.py"`, []string{"x.sh:1 overwrites", "x.sh:1 dashes"}},
		{"docker", `docker run -e "LIBTPU_INIT_ARGS=--xla_dump_to=/x" image`, []string{"x.sh:1 overwrites"}},
		{"appended", `export LIBTPU_INIT_ARGS="$LIBTPU_INIT_ARGS --xla_tpu_rwb_fusion"`, []string{"x.sh:1 no-value"}},
		{"prepended", `export LIBTPU_INIT_ARGS="--xla_dump_to=/x ${LIBTPU_INIT_ARGS:-}"`, nil},
		{"added", `LIBTPU_INIT_ARGS+=" --xla_dump_to=/x"`, nil},
		{"only a default", `export LIBTPU_INIT_ARGS="${LIBTPU_INIT_ARGS:---xla_dump_to=/x ---a=1}"`, []string{"x.sh:1 dashes"}},
		{"guarded", "if [[ -z \"${LIBTPU_INIT_ARGS:-}\" ]]; then\n  export LIBTPU_INIT_ARGS='--xla_dump_to=/x'\nfi", nil},
		{"variables", `export LIBTPU_INIT_ARGS="${MINE} --xla_tpu_scoped_vmem_limit_kib=$KIB --xla_dump_to=$(mktemp -d) ---a=1"`, []string{"x.sh:1 overwrites", "x.sh:1 dashes"}},
		{"emptied", "unset LIBTPU_INIT_ARGS", []string{"x.sh:1 overwrites"}},
		{"emptied by assignment", "LIBTPU_INIT_ARGS=\npython3 t.py", []string{"x.sh:1 overwrites"}},
		{"comments", "# export LIBTPU_INIT_ARGS=--a\n  echo x # LIBTPU_INIT_ARGS=--a", nil},
		{"uses", "echo $LIBTPU_INIT_ARGS; MY_LIBTPU_INIT_ARGS=--a; [ \"$LIBTPU_INIT_ARGS\" = x ]", nil},
		{"unfinished", `export LIBTPU_INIT_ARGS="--xla_dump_to=/x`, []string{"x.sh:1 overwrites"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, f := range c.ScanScript("x.sh", tc.script, "v5e") {
				got = append(got, f.Where+" "+f.Rule)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("found %q, want %q", got, tc.want)
			}
		})
	}
	f := c.ScanScript("x.sh", `export LIBTPU_INIT_ARGS="--xla_dump_to=/x --xla_tpu_rwb_fusion=true"`, "v5e")
	if want := `LIBTPU_INIT_ARGS="${LIBTPU_INIT_ARGS:-} --xla_dump_to=/x …"`; len(f) != 1 || f[0].Instead != want {
		t.Errorf("findings %v, want instead %q", f, want)
	}
}

func TestScanPython(t *testing.T) {
	c := Load()
	for script, want := range map[string]string{
		"import os\nos.environ['LIBTPU_INIT_ARGS'] = '--xla_dump_to=/x'\n":                                                   "2 overwrites",
		"os.environ[\"LIBTPU_INIT_ARGS\"] = (\n  \"--xla_dump_to=/x \"\n  \"---xla_tpu_rwb_fusion=true\")\n":                 "1 overwrites,1 dashes",
		"os.environ['LIBTPU_INIT_ARGS'] += ' ---a=1'":                                                                        "1 dashes",
		"os.environ['LIBTPU_INIT_ARGS'] = os.environ.get('LIBTPU_INIT_ARGS','') + f' --xla_tpu_scoped_vmem_limit_kib={kib}'": "",
		"if os.environ['LIBTPU_INIT_ARGS'] == 'x': pass":                                                                     "",
		"# os.environ['LIBTPU_INIT_ARGS'] = 'x'":                                                                             "",
		"os.environ.setdefault('LIBTPU_INIT_ARGS', '--a=1')":                                                                 "",
	} {
		var got []string
		for _, f := range c.ScanScript("t.py", script, "") {
			got = append(got, strings.TrimPrefix(f.Where, "t.py:")+" "+f.Rule)
		}
		if strings.Join(got, ",") != want {
			t.Errorf("%q: found %q, want %q", script, got, want)
		}
	}
}

func TestScanCommand(t *testing.T) {
	c := Load()
	files := fstest.MapFS{
		"configs/v5e/128b.sh": {Data: []byte("bash configs/base.sh\nexport LIBTPU_INIT_ARGS=\"--xla_dump_to=/x\"\n")},
		"configs/base.sh":     {Data: []byte("export LIBTPU_INIT_ARGS=\"$LIBTPU_INIT_ARGS ---a=1\"\nbash configs/v5e/128b.sh\n")},
		"setup":               {Data: []byte("unset LIBTPU_INIT_ARGS\n")},
		"unused.sh":           {Data: []byte("LIBTPU_INIT_ARGS=x\n")},
	}
	const command = "bash setup && bash ./configs/v5e/128b.sh RUN_NAME=x; python3 -m maxtext.train missing.py ../out.sh"
	places := func(s Scan) []string {
		var got []string
		for _, f := range c.ScanCommand(command, files, s) {
			got = append(got, f.Where+" "+f.Rule)
		}
		return got
	}
	if got, want := places(Scan{Generation: "v5e", Given: true}), []string{"setup:1 overwrites", "configs/v5e/128b.sh:2 overwrites", "configs/base.sh:1 dashes"}; !slices.Equal(got, want) {
		t.Errorf("with a preset: %q, want %q", got, want)
	}
	if got, want := places(Scan{}), []string{"configs/base.sh:1 dashes"}; !slices.Equal(got, want) {
		t.Errorf("without: %q, want %q", got, want)
	}
	if got := c.ScanCommand("export LIBTPU_INIT_ARGS=---a=1", nil, Scan{}); len(got) != 1 || got[0].Where != "command:1" {
		t.Errorf("of the command itself: %v", got)
	}
}

func FuzzScanScript(f *testing.F) {
	f.Add(`export LIBTPU_INIT_ARGS="--a=1 ${X:-b} $(c "d")" # e`)
	f.Add("os.environ['LIBTPU_INIT_ARGS'] = ('a'\n")
	f.Add("LIBTPU_INIT_ARGS=\\\"a")
	f.Add("LIBTPU_INIT_ARGS=${")
	f.Add("LIBTPU_INIT_ARGS=`a")
	c := Load()
	f.Fuzz(func(t *testing.T, content string) {
		if len(content) > 2000 {
			return
		}
		for _, name := range []string{"x.sh", "x.py"} {
			for _, finding := range c.ScanScript(name, content, "v5e") {
				if strings.Contains(finding.String(), unknownText) && !strings.Contains(content, unknownText) {
					t.Errorf("a finding shows what is not in the script: %q", finding)
				}
			}
		}
		ScriptNames(content)
	})
}
