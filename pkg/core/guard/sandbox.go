package guard

import "github.com/binnacle-mesh/binnacle/pkg/core/contract"

// narrowed returns the sandbox of a call: the tool's own, within the ceilings and
// the limits of the other layers.
func narrowed(in *Inputs, v Answer) contract.Sandbox {
	s := Narrow(*in.Tool.Sandbox, in.P0.Sandbox)
	if v.Sandbox != nil {
		s = Narrow(s, *v.Sandbox)
	}
	return s
}

// runs reports whether a program can run in the sandbox: every limit is above zero, and
// the tier and the user id are known.
func runs(s contract.Sandbox) bool {
	return bounded(&s) && tierRank(s.Tier) >= 0 && knownUID(s.UID)
}

// bounded reports whether every limit is above zero.
func bounded(s *contract.Sandbox) bool {
	return s.CPUMillis > 0 && s.MemoryMiB > 0 && s.OutputBytes > 0 && s.Pids > 0 && s.WallMS > 0
}

// Narrow returns the sandbox that satisfies both a and b: the smaller value of each
// limit, the stronger tier, and b's user id or, if b has none, that of a. A zero limit
// or an empty tier is no limit. If a or b has an unknown tier, so has the result, and no
// runner satisfies it.
func Narrow(a, b contract.Sandbox) contract.Sandbox {
	a.CPUMillis = lower(a.CPUMillis, b.CPUMillis)
	a.MemoryMiB = lower(a.MemoryMiB, b.MemoryMiB)
	a.OutputBytes = lower(a.OutputBytes, b.OutputBytes)
	a.Pids = lower(a.Pids, b.Pids)
	a.WallMS = lower(a.WallMS, b.WallMS)
	if b.UID != "" {
		a.UID = b.UID
	}
	if b.Tier != "" && (a.Tier == "" || stronger(b.Tier, a.Tier)) {
		a.Tier = b.Tier
	}
	return a
}

// lower returns the smaller of two limits; zero means no limit.
func lower(x, y int64) int64 {
	if x == 0 || y != 0 && y < x {
		return y
	}
	return x
}

// stronger reports whether the isolation tier named by tier ranks above the one named by
// than. An unknown tier ranks above every known one; of two unknown tiers, neither ranks
// above the other.
func stronger(tier, than string) bool {
	return tierRank(than) >= 0 && (tierRank(tier) < 0 || tierRank(tier) > tierRank(than))
}

// tierRank orders the isolation tiers by strength; an unknown tier has a negative
// rank.
func tierRank(t string) int {
	switch t {
	case "process":
		return 0
	case "wasi":
		return 1
	case "container":
		return 2
	case "microvm":
		return 3
	}
	return -1
}

func knownUID(uid string) bool { return uid == "" || uid == contract.OwnUID }

// TierSatisfies reports whether both isolation tiers are known and have is at least as
// strong as want. The tiers are process, wasi, container and microvm, from weakest to
// strongest. The empty tier is unknown.
func TierSatisfies(have, want string) bool {
	return tierRank(want) >= 0 && tierRank(have) >= tierRank(want)
}
