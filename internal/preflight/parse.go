package preflight

import (
	"fmt"
	"strconv"
	"strings"

	"multihost/internal/remote"
)

// parse reads the records of the script's answer. An incomplete answer is an error.
func parse(answer []remote.Record) (Report, error) {
	var report Report
	ended := false
	results := map[string]Result{}
	for _, r := range answer {
		fields := strings.Split(strings.ToValidUTF8(strings.TrimRight(r.Rest, "\r"), "\uFFFD"), "\t")
		var err error
		switch strings.TrimRight(r.Word, "\r") {
		case "result":
			err = addResult(results, fields)
		case "info":
			err = report.addInfo(fields)
		case "end":
			ended = true
		default:
			err = fmt.Errorf("unknown word %q", r.Word)
		}
		if err != nil {
			return Report{}, fmt.Errorf("%w: %w", ErrNoReport, err)
		}
	}
	if !ended {
		return Report{}, ErrNoReport
	}
	for _, s := range Settings() {
		result, ok := results[s.Name]
		if !ok {
			return Report{}, fmt.Errorf("%w: nothing about %s", ErrNoReport, s.Name)
		}
		report.Results = append(report.Results, result)
	}
	return report, nil
}

func addResult(results map[string]Result, f []string) error {
	if len(f) != 7 {
		return fmt.Errorf("result with %d fields", len(f))
	}
	r := Result{Setting: f[0], Want: f[1], Before: f[2], After: f[3], Outcome: Outcome(f[4]), Lost: f[5] == "yes", Reason: f[6]}
	switch r.Outcome {
	case OK, Changed, Skipped, Failed:
	default:
		return fmt.Errorf("setting %q has unknown outcome %q", r.Setting, f[4])
	}
	if _, twice := results[r.Setting]; twice {
		return fmt.Errorf("setting %q reported twice", r.Setting)
	}
	results[r.Setting] = r
	return nil
}

func (r *Report) addInfo(f []string) error {
	if len(f) != 2 {
		return fmt.Errorf("info with %d fields", len(f))
	}
	var err error
	switch key, value := f[0], f[1]; key {
	case "numa_nodes":
		r.NUMANodes, err = count(value)
	case "devices":
		r.Devices, err = count(value)
	case "node0_kb":
		r.Node0Bytes, err = kilobytes(value)
	case "total_kb":
		r.TotalBytes, err = kilobytes(value)
	case "numactl":
		r.HasNumactl = value == "yes"
	case "boot_id":
		r.BootID = value
	default:
		err = fmt.Errorf("unknown info %q", key)
	}
	return err
}

func count(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err
}

func kilobytes(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 53)
	return int64(n) << 10, err
}
