package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

func build(t testing.TB, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	return path
}

func runner(t testing.TB) Process {
	uids, err := OpenUIDs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return Process{StateDir: t.TempDir(), UIDs: uids}
}

var small = contract.Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 4096, Pids: 16, WallMS: 5000}

func file(t *testing.T, body string) string {
	path := filepath.Join(t.TempDir(), "pack")
	if err := os.WriteFile(path, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestScripts checks that a script runs with its sealed interpreter, and that the error
// names an interpreter that is missing, has no absolute path, is a script or needs a
// loader. It also checks that Problem returns an error for a dynamically linked
// program.
func TestScripts(t *testing.T) {
	// The interpreter is the pack upper, which ignores the script and reads standard
	// input.
	interpreter := build(t, "github.com/binnacle-mesh/binnacle/examples/packs/upper")
	p, err := program.Open(file(t, "#! "+interpreter+" -x\nwhatever\n"))
	if err != nil {
		t.Fatal(err)
	}
	// A change of the interpreter's file after Open must have no effect.
	if err := os.WriteFile(interpreter, []byte("garbage"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := runner(t).Run(t.Context(), Spec{ID: "script", Program: p, Stdin: []byte(`{"text":"a"}`), Limits: small})
	if err != nil || !strings.Contains(string(out.Stdout), `"A"`) || !strings.Contains(fmt.Sprint(out.Attest.Enforced), "interpreter:"+p.Interpreter.Digest) || out.Attest.ImageDigest != p.Digest {
		t.Errorf("%v %+v %s", err, out, out.Stderr)
	}
	for body, want := range map[string]string{
		"#!/no/such/python3 -u\n": "/no/such/python3 does not exist", "#!python3\n": "python3 is not an absolute path", "#!\n": "is not an absolute path",
		"#!" + file(t, "#!/bin/sh\n") + "\n": "is a script itself", "#!" + dynamic(t) + "\n": "needs /lib",
	} {
		p, err := program.Open(file(t, body))
		if err != nil {
			t.Fatal(err)
		}
		_, err = runner(t).Run(t.Context(), Spec{ID: "missing", Program: p, Limits: small})
		var missing *program.MissingInterpreter
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", body, err, want)
		}
	}
	d, err := program.Open(dynamic(t))
	if err != nil || d.Problem() == nil || !strings.Contains(d.Problem().Error(), "/lib") {
		t.Errorf("a dynamically linked program: %v %v", err, d.Problem())
	}
}

// dynamic writes a file with the ELF headers of a program that names a dynamic loader.
func dynamic(t *testing.T) string {
	loader := "/lib64/ld-linux-x86-64.so.2\x00"
	elf := make([]byte, 64+56, 256)
	copy(elf, "\x7fELF\x02\x01\x01")
	put := func(at int, v uint64, n int) {
		for i := range n {
			elf[at+i] = byte(v >> (8 * i))
		}
	}
	put(16, 2, 2)   // type: executable
	put(18, 62, 2)  // machine: x86-64
	put(20, 1, 4)   // version of the format
	put(32, 64, 8)  // offset of the program headers
	put(52, 64, 2)  // size of this header
	put(54, 56, 2)  // size of a program header
	put(56, 1, 2)   // number of program headers
	put(58, 64, 2)  // size of a section header
	put(64, 3, 4)   // type of the program header: PT_INTERP
	put(72, 120, 8) // offset of the loader's path
	put(96, uint64(len(loader)), 8)
	put(104, uint64(len(loader)), 8)
	return file(t, string(elf)+loader)
}

// TestSealed checks that a write to a sealed program fails, that Bytes returns the bytes
// that were hashed, and that a symbolic link is not opened.
func TestSealed(t *testing.T) {
	path := file(t, "#!/no/such\nfirst")
	p, err := program.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("second"), 0o755); err != nil {
		t.Fatal(err)
	}
	if w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", p.File().Fd()), os.O_RDWR, 0); err == nil {
		if _, err := w.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("written: %v", err)
		}
		w.Close()
	}
	if b, err := p.Bytes(); err != nil || string(b) != "#!/no/such\nfirst" || program.Digest(b) != p.Digest {
		t.Errorf("%q %v", b, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := program.Open(link); err == nil {
		t.Error("a symbolic link was opened")
	}
}

// TestUIDs checks that no user id is allocated twice at the same time, even by two UIDs
// that share a folder.
func TestUIDs(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	held := map[int]bool{}
	var wg sync.WaitGroup
	for range 2 {
		u, err := OpenUIDs(dir)
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			wg.Go(func() {
				for range 50 {
					id, release, err := u.Take()
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if held[id] || id < firstUID || id >= firstUID+numUIDs {
						t.Errorf("%d is held twice, or outside of the range", id)
					}
					held[id] = true
					mu.Unlock()
					time.Sleep(100 * time.Microsecond) // hold the id, so that allocations overlap
					mu.Lock()
					delete(held, id)
					mu.Unlock()
					release()
				}
			})
		}
	}
	wg.Wait()
}

// TestFilter interprets the BPF program of the filter and checks its result for each
// system call, for some calls with arguments, and for another architecture.
func TestFilter(t *testing.T) {
	f := filter()
	if len(f) > 4096 {
		t.Fatalf("%d instructions", len(f))
	}
	decide := func(arch, call uint32, args ...uint32) uint32 {
		data := map[uint32]uint32{offCall: call, offArch: arch}
		for i, a := range args {
			data[offArg+uint32(8*i)] = a
		}
		var acc uint32
		for pc := 0; pc < len(f); pc++ {
			in := f[pc]
			yes := false
			switch in.Code &^ unix.BPF_K {
			case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
				acc = data[in.K]
				continue
			case unix.BPF_RET:
				return in.K
			case unix.BPF_JMP | unix.BPF_JEQ:
				yes = acc == in.K
			case unix.BPF_JMP | unix.BPF_JGT:
				yes = acc > in.K
			case unix.BPF_JMP | unix.BPF_JGE:
				yes = acc >= in.K
			case unix.BPF_JMP | unix.BPF_JSET:
				yes = acc&in.K != 0
			default:
				t.Fatalf("instruction %d: code %#x", pc, in.Code)
			}
			if pc += int(in.Jf); yes {
				pc += int(in.Jt) - int(in.Jf)
			}
		}
		t.Fatal("no decision")
		return 0
	}
	errno := func(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }
	for name, c := range map[string]struct {
		call uint32
		args []uint32
		want uint32
	}{
		"read": {unix.SYS_READ, nil, unix.SECCOMP_RET_ALLOW}, "keyctl": {unix.SYS_KEYCTL, nil, errno(unix.EPERM)}, "clone": {unix.SYS_CLONE, []uint32{unix.CLONE_VM | unix.CLONE_THREAD}, unix.SECCOMP_RET_ALLOW},
		"clone user": {unix.SYS_CLONE, []uint32{unix.CLONE_NEWUSER | 17}, errno(unix.EPERM)}, "clone net": {unix.SYS_CLONE, []uint32{unix.CLONE_NEWNET}, errno(unix.EPERM)}, "clone3": {unix.SYS_CLONE3, nil, errno(unix.ENOSYS)},
		"inet": {unix.SYS_SOCKET, []uint32{unix.AF_INET}, unix.SECCOMP_RET_ALLOW}, "inet6": {unix.SYS_SOCKET, []uint32{unix.AF_INET6}, unix.SECCOMP_RET_ALLOW}, "unix": {unix.SYS_SOCKET, []uint32{unix.AF_UNIX}, unix.SECCOMP_RET_ALLOW},
		"vsock": {unix.SYS_SOCKET, []uint32{unix.AF_VSOCK}, errno(unix.EAFNOSUPPORT)}, "pair": {unix.SYS_SOCKETPAIR, []uint32{unix.AF_VSOCK}, errno(unix.EAFNOSUPPORT)},
		"tiocsti": {unix.SYS_IOCTL, []uint32{0, unix.TIOCSTI}, errno(unix.EPERM)}, "tcgets": {unix.SYS_IOCTL, []uint32{0, unix.TCGETS}, unix.SECCOMP_RET_ALLOW},
		"io_uring": {unix.SYS_IO_URING_SETUP, nil, errno(unix.EPERM)}, "future": {newestCall + 1, nil, errno(unix.ENOSYS)}, "x32": {0x40000000, nil, errno(unix.ENOSYS)},
	} {
		if got := decide(auditArch, c.call, c.args...); got != c.want {
			t.Errorf("%s: %#x, want %#x", name, got, c.want)
		}
	}
	allowed := map[uint32]bool{unix.SYS_CLONE: true, unix.SYS_SOCKET: false, unix.SYS_SOCKETPAIR: false, unix.SYS_IOCTL: true}
	for _, c := range append(append([]uintptr{}, commonCalls...), archCalls...) {
		allowed[uint32(c)] = true
	}
	for call := range uint32(newestCall + 100) {
		if got := decide(auditArch, call) == unix.SECCOMP_RET_ALLOW; got != allowed[call] {
			t.Errorf("call %d: allowed %v", call, got)
		}
	}
	if got := decide(auditArch^1, unix.SYS_READ); got != unix.SECCOMP_RET_KILL_PROCESS {
		t.Errorf("another architecture: %#x", got)
	}
}

// TestFullFolder checks that a program that fills a writable folder with data or with files fails
// with ENOSPC, which the outcome reports; that the folders have the size of the run, or the memory
// limit if that is less and no control group counts them; that the attestation has the size; and
// that a program which is not at the limit, or fails for another reason, is not reported.
func TestFullFolder(t *testing.T) {
	p, err := program.Open(build(t, "github.com/binnacle-mesh/binnacle/e2e/packs/escape"))
	if err != nil {
		t.Fatal(err)
	}
	imitate, err := program.Open(build(t, "./testdata/imitate"))
	if err != nil {
		t.Fatal(err)
	}
	r, limits := runner(t), small
	limits.Pids, limits.WallMS = 256, 60_000 // without a control group, the first counts the threads of all processes of the user id, also those of other tests
	run := func(p *program.Program, how string, mib int64) Outcome {
		t.Helper()
		out, err := r.Run(t.Context(), Spec{ID: "full-" + strings.ReplaceAll(how, "/", ""), Program: p, DiskMiB: mib, Stdin: fmt.Appendf(nil, `{"how":%q}`, how), Limits: limits})
		if err != nil {
			t.Fatal(err)
		}
		if want := DiskFact(mib); !slices.Contains(out.Attest.Enforced, want) {
			t.Errorf("no %s in %v", want, out.Attest.Enforced)
		}
		return out
	}
	check := func() {
		t.Helper()
		for _, how := range []string{"disk /tmp", "disk /work", "names /tmp", "names /work"} {
			if out := run(p, how, 4); out.Exit != 1 || !out.DiskFull || out.OOM || !strings.Contains(string(out.Stderr), "no space left on device") {
				t.Errorf("%s: exit %d, full %v, out of memory %v: %s", how, out.Exit, out.DiskFull, out.OOM, out.Stderr)
			}
		}
		if out := run(p, "", 4); out.DiskFull || out.Exit != 0 {
			t.Errorf("a program that fills nothing: exit %d, full %v: %s", out.Exit, out.DiskFull, out.Stderr)
		}
		if out := run(imitate, "", 4); out.DiskFull || out.Exit == 0 {
			t.Errorf("a program that fails: exit %d, full %v", out.Exit, out.DiskFull)
		}
	}
	check()
	defer func(fs string) { cgroupFS = fs }(cgroupFS)
	cgroupFS = t.TempDir()
	if err := os.WriteFile(cgroupFS+"/cgroup.controllers", nil, 0o400); err != nil { // a hierarchy in which no group can be made
		t.Fatal(err)
	}
	if err := os.WriteFile(cgroupFS+"/binnacle", nil, 0o400); err != nil {
		t.Fatal(err)
	}
	check()
	out, err := r.Run(t.Context(), Spec{ID: "full-least", Program: p, DiskMiB: 512, Stdin: []byte(`{"how":"disk /work"}`), Limits: limits})
	if err != nil || !out.DiskFull || !slices.Contains(out.Attest.Enforced, DiskFact(limits.MemoryMiB)) {
		t.Errorf("without a control group: full %v, %v, %v: %s", out.DiskFull, out.Attest.Enforced, err, out.Stderr)
	}
}

// TestImitatedFailure checks that Run returns no error for a program that imitates a
// failure to create its sandbox, with the exit code and the standard error of such a
// failure, and that the error for a program that cannot be executed names the step that
// failed.
func TestImitatedFailure(t *testing.T) {
	p, err := program.Open(build(t, "./testdata/imitate"))
	if err != nil {
		t.Fatal(err)
	}
	r := runner(t)
	out, err := r.Run(t.Context(), Spec{ID: "imitate", Program: p, Limits: small})
	if err != nil || out.Exit != 125 || !strings.HasPrefix(string(out.Stderr), initName) {
		t.Errorf("exit %d, %s, %v", out.Exit, out.Stderr, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if out, err := r.run(t.Context(), Spec{ID: "none", Program: p, Limits: small}, setup{Argv: []string{"x"}, Limits: small}, []*os.File{null}); err == nil || !strings.Contains(err.Error(), "exec: ") {
		t.Errorf("exit %d, %s, %v", out.Exit, out.Stderr, err)
	}
}
