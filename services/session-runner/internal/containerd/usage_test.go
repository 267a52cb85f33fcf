package containerd

import (
	"context"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// metered is a containerd task whose method Metrics returns metric and err.
type metered struct {
	containerd.Task
	metric *types.Metric
	err    error
}

func (m metered) Metrics(context.Context) (*types.Metric, error) { return m.metric, m.err }

// TestUsage checks that usage reads the metrics of cgroup 2, and which amounts it lists
// if some cannot be read. The bytes in the test are those that containerd's cgroup 2
// reader (cgroups/v3, cgroup2.Manager.Stat) produces from the files of a group in
// Linux's format, with memory.peak (Linux 5.19) and without.
func TestUsage(t *testing.T) {
	const v2 = "io.containerd.cgroups.v2.Metrics"
	const peak = "0a040803104012130891d13710edb53718a41b200c280330a2c202221e0880a0402080800d9001bc3f800280808301880280808020a00280c0e7082a0032004206180420012801"
	const before519 = "0a040803104012130891d13710edb53718a41b200c280330a2c20222180880a0402080800d9001bc3f8002808083018802808080202a0032004206180420012801"
	metric := func(url, value string) *types.Metric {
		b, err := hex.DecodeString(value)
		if err != nil {
			t.Fatal(err)
		}
		return &types.Metric{Data: &anypb.Any{TypeUrl: url, Value: b}}
	}
	egress := contract.Usage{Measured: []string{"egress_bytes"}}
	for name, c := range map[string]struct {
		task metered
		want contract.Usage
	}{
		"cgroup 2":                 {metered{metric: metric(v2, peak)}, contract.Usage{CPUMillis: 912, MemoryPeakBytes: 18472960, Measured: []string{"compute_ms", "egress_bytes", "memory_peak_bytes"}}},
		"cgroup 2 without peak":    {metered{metric: metric(v2, before519)}, contract.Usage{CPUMillis: 912, Measured: []string{"compute_ms", "egress_bytes"}}},
		"cgroup 2, nothing ran":    {metered{metric: metric(v2, "")}, egress},
		"unknown type":             {metered{metric: metric("io.containerd.cgroups.v9.Metrics", peak)}, egress},
		"what cannot be read":      {metered{metric: metric(v2, "ff")}, egress},
		"a shim that is gone":      {metered{err: errors.New("ttrpc: closed")}, egress},
		"a peak beyond all memory": {metered{metric: metric(v2, "220ca002ffffffffffffffffff01")}, egress},
	} {
		if got, _ := usage(t.Context(), c.task); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
