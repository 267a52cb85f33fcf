package containerd

import (
	"context"
	"math"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd"
	"github.com/containerd/typeurl/v2"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// usage returns the CPU time and peak memory of the container from its cgroup (version 1 or 2),
// which exists until the task is deleted. Measured lists those of the two amounts that could be
// read, and egress, which the caller sets. oom reports whether the kernel killed a process of the
// container because the cgroup reached its memory limit.
func usage(ctx context.Context, task containerd.Task) (u contract.Usage, oom bool) {
	u = contract.Usage{Measured: []string{contract.MeasureEgress}}
	m, err := task.Metrics(ctx)
	if err != nil {
		return u, false
	}
	v, err := typeurl.UnmarshalAny(m.Data)
	if err != nil {
		return u, false
	}
	var cpu time.Duration
	var memory uint64
	switch m := v.(type) {
	case *cgroup1.Metrics:
		cpu, memory = time.Duration(m.GetCPU().GetUsage().GetTotal()), m.GetMemory().GetUsage().GetMax()
		oom = m.GetMemoryOomControl().GetOomKill() > 0
	case *cgroup2.Metrics:
		cpu, memory = time.Duration(m.GetCPU().GetUsageUsec())*time.Microsecond, m.GetMemory().GetMaxUsage()
		oom = m.GetMemoryEvents().GetOomKill() > 0
	}
	if cpu > 0 {
		u.CPUMillis = int64((cpu + time.Millisecond - 1) / time.Millisecond)
		u.Measured = append([]string{contract.MeasureCompute}, u.Measured...)
	}
	if memory > 0 && memory <= math.MaxInt64 { // the shim reports math.MaxUint64 if the file of the cgroup contains "max"
		u.MemoryPeakBytes = int64(memory)
		u.Measured = append(u.Measured, contract.MeasureMemory)
	}
	return u, oom
}
