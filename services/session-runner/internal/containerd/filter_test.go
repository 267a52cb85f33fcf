package containerd

import (
	"runtime"
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// interpret returns the result of a filter for a system call.
func interpret(t *testing.T, f []unix.SockFilter, machine, call uint32, args ...uint64) uint32 {
	t.Helper()
	data := map[uint32]uint32{filterCall: call, filterArch: machine}
	for i, a := range args {
		data[filterArgs+uint32(8*i)], data[filterArgs+uint32(8*i)+4] = uint32(a), uint32(a>>32)
	}
	var acc uint32
	for pc := 0; pc < len(f); pc++ {
		in := f[pc]
		yes := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = data[in.K]
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			yes = acc == in.K
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			yes = acc > in.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			yes = acc&in.K != 0
		default:
			t.Fatalf("instruction %d: %+v", pc, in)
		}
		if yes {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	t.Fatal("the filter has no result")
	return 0
}

// decided returns the result that the rules of a profile have for a system call, as the
// specification of the OCI runtime defines it.
func decided(p *specs.LinuxSeccomp, name string, args [6]uint64) uint32 {
	holds := func(c specs.LinuxSeccompArg) bool {
		if c.Op == specs.OpMaskedEqual {
			return args[c.Index]&c.Value == c.ValueTwo
		}
		return args[c.Index] == c.Value // the only other operator in the profile; TestCompiledFilter checks that
	}
	for _, r := range p.Syscalls {
		if !slices.Contains(r.Names, name) || slices.ContainsFunc(r.Args, func(c specs.LinuxSeccompArg) bool { return !holds(c) }) {
			continue
		}
		if r.Action == specs.ActAllow {
			return unix.SECCOMP_RET_ALLOW
		}
		return unix.SECCOMP_RET_ERRNO | uint32(*r.ErrnoRet)
	}
	return unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
}

// TestCompiledFilter compares the compiled filter with the rules of the profile, for every
// system call of amd64 and several arguments, and checks its results for other numbers and for
// the architecture 386.
func TestCompiledFilter(t *testing.T) {
	p := profileFilter()
	f, err := compileFilter(p)
	if err != nil || len(f) > 4096 { // the kernel's limit
		t.Fatalf("%d instructions, %v", len(f), err)
	}
	for _, r := range p.Syscalls {
		for _, c := range r.Args {
			if c.Op != specs.OpEqualTo && c.Op != specs.OpMaskedEqual {
				t.Errorf("%v: operator %s", r.Names, c.Op)
			}
		}
	}
	values := []uint64{0, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_ALG, unix.AF_VSOCK, unix.AF_NETLINK, unix.CLONE_NEWUSER, unix.CLONE_NEWNS | uint64(unix.SIGCHLD), unix.CLONE_VM | unix.CLONE_VFORK, 1<<32 | unix.AF_UNIX, 1 << 63, 1<<64 - 1}
	allowed, newest := 0, 0
	for name, n := range arch.X86_64.SyscallNames {
		newest = max(newest, n)
		for _, v := range values {
			got, want := interpret(t, f, unix.AUDIT_ARCH_X86_64, uint32(n), v), decided(p, name, [6]uint64{v})
			if got != want {
				t.Errorf("%s(%#x): %#x, want %#x", name, v, got, want)
			}
			if got == unix.SECCOMP_RET_ALLOW {
				allowed++
			}
		}
		if got := interpret(t, f, unix.AUDIT_ARCH_I386, uint32(n)); got != unix.SECCOMP_RET_KILL_PROCESS {
			t.Errorf("%s of 386: %#x", name, got)
		}
	}
	if allowed < 250*len(values) || allowed > 350*len(values) {
		t.Errorf("%d of %d are allowed", allowed, len(arch.X86_64.SyscallNames)*len(values))
	}
	enosys := unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	for _, call := range []uint32{uint32(newest) + 1, 1000, 0x40000000, 0x40000000 | unix.SYS_PTRACE, 1<<32 - 1} { // from 0x40000000 on: x32
		if got := interpret(t, f, unix.AUDIT_ARCH_X86_64, call); got != enosys {
			t.Errorf("call %#x: %#x", call, got)
		}
	}
	for _, call := range []uint32{unix.SYS_UNSHARE, unix.SYS_MOUNT, unix.SYS_PTRACE, unix.SYS_BPF, unix.SYS_KEYCTL, unix.SYS_IO_URING_SETUP, unix.SYS_SETNS} {
		if got := interpret(t, f, unix.AUDIT_ARCH_X86_64, call); got != unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM) {
			t.Errorf("call %d: %#x", call, got)
		}
	}
	if (filteredELF() != nil) != (runtime.GOARCH == "amd64") {
		t.Error("the launcher with the filter exists on amd64, and on amd64 alone")
	}
}

// TestUncompiledFilter shows that compileFilter returns an error for filters that it cannot
// compile.
func TestUncompiledFilter(t *testing.T) {
	no := uint(1)
	for name, change := range map[string]func(*specs.LinuxSeccomp){
		"default action": func(p *specs.LinuxSeccomp) { p.DefaultAction = specs.ActAllow },
		"flags":          func(p *specs.LinuxSeccomp) { p.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog} },
		"action": func(p *specs.LinuxSeccomp) {
			p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"bpf"}, Action: specs.ActLog})
		},
		"operator": func(p *specs.LinuxSeccomp) {
			p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"bpf"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Op: specs.OpLessThan, Value: 3}}})
		},
		"two conditions": func(p *specs.LinuxSeccomp) {
			p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"bpf"}, Action: specs.ActAllow, Args: make([]specs.LinuxSeccompArg, 2)})
		},
		"allowed with an error": func(p *specs.LinuxSeccomp) {
			p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActErrno, ErrnoRet: &no})
		},
	} {
		p := profileFilter()
		change(p)
		if _, err := compileFilter(p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
