package containerd

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/containerd/containerd/contrib/seccomp"
	"github.com/containerd/containerd/oci"
	"github.com/elastic/go-seccomp-bpf/arch"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// runc compiles the system call filter of a container each time that it starts one, stores it
// in its state and reads it again with each command. On amd64 a container of tier "container"
// has no filter in its specification: its first process executes code that installs the
// filter, and then the launcher. The session-runner compiles the filter once. Because the filter
// is installed before the launcher reads the start message, no program runs without it. If the
// kernel does not install the filter, the first process exits with launcherFailed.
const filteredPath = "/pack/filtered"

// filterPrologue is the code that is executed before the launcher's. It expects a struct
// sock_fprog at the distance that filteredELF writes to filterDistance.
var filterPrologue = []byte{
	0xbf, 0x16, 0x00, 0x00, 0x00, //             mov    edi, 22          ; PR_SET_SECCOMP
	0xbe, 0x02, 0x00, 0x00, 0x00, //             mov    esi, 2           ; SECCOMP_MODE_FILTER
	0x48, 0x8d, 0x15, 0x00, 0x00, 0x00, 0x00, // lea    rdx, [rip+…]     ; struct sock_fprog
	0x45, 0x31, 0xd2, //                         xor    r10d, r10d
	0x45, 0x31, 0xc0, //                         xor    r8d, r8d
	0xb8, 0x9d, 0x00, 0x00, 0x00, //             mov    eax, 157         ; prctl(2)
	0x0f, 0x05, //                               syscall
	0x85, 0xc0, //                               test   eax, eax
	0x74, 0x0c, //                               je     launcher
	0xbf, 0x7d, 0x00, 0x00, 0x00, //             mov    edi, 125         ; launcherFailed
	0xb8, 0xe7, 0x00, 0x00, 0x00, //             mov    eax, 231         ; exit_group(2)
	0x0f, 0x05, //                               syscall
} //                                  launcher:

const (
	filterDistance = 13 // offset in filterPrologue of the distance
	filterFrom     = 17 // offset from which the processor counts the distance
)

// filteredELF returns the program at filteredPath. It returns nil on other architectures than
// amd64, and if the filter cannot be compiled; containers then have the filter in their
// specification.
var filteredELF = sync.OnceValue(func() []byte {
	if runtime.GOARCH != "amd64" {
		return nil
	}
	filter, err := compileFilter(profileFilter())
	if err != nil {
		return nil
	}
	code := slices.Concat(filterPrologue, launcherAMD64)
	code = append(code, make([]byte, -len(code)&7)...)
	binary.LittleEndian.PutUint32(code[filterDistance:], uint32(len(code)-filterFrom))
	code = binary.LittleEndian.AppendUint64(code, uint64(len(filter))) // struct sock_fprog: the number of instructions and their address
	code = binary.LittleEndian.AppendUint64(code, uint64(launcherEntry+len(code)+8))
	for _, i := range filter {
		code = binary.LittleEndian.AppendUint16(code, i.Code)
		code = append(code, i.Jt, i.Jf)
		code = binary.LittleEndian.AppendUint32(code, i.K)
	}
	return elf(launchers["amd64"].machine, code)
})

// profileFilter returns the filter of a container: containerd's default profile, narrowed.
func profileFilter() *specs.LinuxSeccomp {
	s := &oci.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}, Linux: &specs.Linux{}}
	s.Linux.Seccomp = seccomp.DefaultProfile(s)
	_ = narrowed(context.Background(), nil, nil, s) // never fails
	return s.Linux.Seccomp
}

// Offsets in struct seccomp_data (seccomp(2)). filterArgs is that of the first argument, of
// eight bytes with the low four first.
const (
	filterCall = 0
	filterArch = 4
	filterArgs = 16
)

// compileFilter returns a filter for amd64 as a classic BPF program. A system call of another
// architecture kills the process. System calls that no rule names return EPERM, and those that
// are newer than the table of numbers return ENOSYS, as with runc, so that libraries fall back
// to older ones. A rule with a condition can compare one argument with a value of 32 bits, or
// some of the low 32 bits of an argument with zero. compileFilter returns an error for other
// rules, for flags, and for another default than EPERM.
func compileFilter(p *specs.LinuxSeccomp) ([]unix.SockFilter, error) {
	if p.DefaultAction != specs.ActErrno || p.DefaultErrnoRet != nil || len(p.Flags) > 0 {
		return nil, fmt.Errorf("the filter has the default action %s or flags", p.DefaultAction)
	}
	calls, newest := arch.X86_64.SyscallNames, 0
	for _, n := range calls {
		newest = max(newest, n)
	}
	always, some, err := filterRules(p, calls)
	if err != nil {
		return nil, err
	}
	f := []unix.SockFilter{
		filterLoad(filterArch), filterJump(unix.BPF_JEQ, unix.AUDIT_ARCH_X86_64, 1, 0), filterReturn(unix.SECCOMP_RET_KILL_PROCESS),
		filterLoad(filterCall),
		filterJump(unix.BPF_JGT, uint32(newest), 0, 1), filterReturn(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)),
	}
	for _, r := range some {
		f = append(append(f, filterJump(unix.BPF_JEQ, r.call, 0, uint8(len(r.body)))), r.body...)
	}
	for _, n := range always {
		f = append(f, filterJump(unix.BPF_JEQ, n, 0, 1), filterReturn(unix.SECCOMP_RET_ALLOW))
	}
	return append(f, filterReturn(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM))), nil
}

// filterRule decides a system call by its arguments, or returns an error. body ends with a
// return instruction.
type filterRule struct {
	call uint32
	body []unix.SockFilter
}

// filterRules returns the system calls that a filter always allows, and the rules for those
// that it decides otherwise, both in the order of their numbers. It omits names that calls does
// not have: they are system calls of other architectures.
func filterRules(p *specs.LinuxSeccomp, calls map[string]int) (always []uint32, some []filterRule, err error) {
	conditions := map[uint32][]unix.SockFilter{}
	errnos := map[uint32]uint32{}
	for _, rule := range p.Syscalls {
		for _, name := range rule.Names {
			n, ok := calls[name]
			call := uint32(n)
			switch {
			case !ok:
			case rule.Action == specs.ActAllow && len(rule.Args) == 0:
				always = append(always, call)
			case rule.Action == specs.ActErrno && len(rule.Args) == 0 && rule.ErrnoRet != nil:
				errnos[call] = uint32(*rule.ErrnoRet)
			case rule.Action == specs.ActAllow && len(rule.Args) == 1:
				test, err := filterCondition(rule.Args[0])
				if err != nil {
					return nil, nil, fmt.Errorf("%s: %w", name, err)
				}
				conditions[call] = append(conditions[call], test...)
			default:
				return nil, nil, fmt.Errorf("%s: the action %s with %d conditions cannot be compiled", name, rule.Action, len(rule.Args))
			}
		}
	}
	slices.Sort(always)
	always = slices.Compact(always)
	for call, errno := range errnos {
		if slices.Contains(always, call) || conditions[call] != nil {
			return nil, nil, fmt.Errorf("system call %d has an error and is allowed", call)
		}
		some = append(some, filterRule{call, []unix.SockFilter{filterReturn(unix.SECCOMP_RET_ERRNO | errno)}})
	}
	for call, body := range conditions {
		if !slices.Contains(always, call) { // an unconditional rule includes the others
			some = append(some, filterRule{call, append(body, filterReturn(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)))})
		}
	}
	slices.SortFunc(some, func(a, b filterRule) int { return int(a.call) - int(b.call) })
	return always, some, nil
}

// filterCondition returns instructions that allow the system call if the condition holds, and
// otherwise continue after them.
func filterCondition(c specs.LinuxSeccompArg) ([]unix.SockFilter, error) {
	at := filterArgs + 8*uint32(c.Index)
	allow := filterReturn(unix.SECCOMP_RET_ALLOW)
	switch {
	case c.Op == specs.OpEqualTo && c.Value>>32 == 0:
		return []unix.SockFilter{filterLoad(at + 4), filterJump(unix.BPF_JEQ, 0, 0, 3), filterLoad(at), filterJump(unix.BPF_JEQ, uint32(c.Value), 0, 1), allow}, nil
	case c.Op == specs.OpMaskedEqual && c.Value>>32 == 0 && c.ValueTwo == 0:
		return []unix.SockFilter{filterLoad(at), filterJump(unix.BPF_JSET, uint32(c.Value), 1, 0), allow}, nil
	}
	return nil, fmt.Errorf("the condition %s %d cannot be compiled", c.Op, c.Value)
}

func filterLoad(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

// filterJump returns an instruction that compares the accumulator with k. If the comparison
// holds, it skips the number of instructions in yes, and otherwise the number in no.
func filterJump(op uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func filterReturn(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}
