package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// mesh runs a mesh with one process per service, a provisioner and a NATS server. addr
// is the address of the gateway and nats that of the NATS server; data is the folder of
// the mesh's state and keys, bin that of the programs; ldflags are the flags with which
// the programs are linked.
type mesh struct {
	addr, nats, data, bin, ldflags string
	services                       []string

	mu    sync.Mutex // serializes the lines that copy prints
	procs map[string]*proc
}

// proc is one process of the mesh.
type proc struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has exited
}

const module = "github.com/binnacle-mesh/binnacle/"

// run starts the mesh and restarts services when their sources change, until ctx is
// done. It stops the mesh before it returns. An error at the start is returned; errors
// of a later build or restart are printed, and run continues.
func (m *mesh) run(ctx context.Context) error {
	m.procs = map[string]*proc{}
	defer m.stopAll()
	w := watcher{}
	w.seen = w.read()
	if err := m.begin(ctx); err != nil {
		return err
	}
	if err := m.ready(ctx); err != nil {
		return err
	}
	fmt.Printf("dev: the mesh is up at http://%s; token %s; ledger %s\n", m.addr, filepath.Join(m.data, "admin.token"), filepath.Join(m.data, "nats"))
	for {
		dirs := w.next(ctx)
		if dirs == nil {
			return nil
		}
		if err := m.update(ctx, dirs); err != nil && ctx.Err() == nil {
			fmt.Printf("dev: %v; waiting for the next change\n", err)
		}
	}
}

// begin starts NATS, the provisioner and every service. It creates the keys of the mesh
// if the data folder has none.
func (m *mesh) begin(ctx context.Context) error {
	if err := os.MkdirAll(m.data, 0o700); err != nil {
		return err
	}
	binnacle := filepath.Join(m.bin, "binnacle")
	if _, err := os.Stat(filepath.Join(m.data, "keys")); errors.Is(err, os.ErrNotExist) {
		if out, err := exec.CommandContext(ctx, binnacle, "init", "--data", m.data).CombinedOutput(); err != nil {
			return fmt.Errorf("binnacle init: %w\n%s", err, out)
		}
	}
	conf, err := exec.CommandContext(ctx, binnacle, "provision", "--print-config", "--data", m.data, "--store", filepath.Join(m.data, "nats"),
		"--nats-listen", m.nats, "--monitor", "").Output()
	if err != nil {
		return fmt.Errorf("binnacle provision --print-config: %w", err)
	}
	path := filepath.Join(m.data, "nats.conf")
	if err := os.WriteFile(path, conf, 0o600); err != nil {
		return err
	}
	if err := m.start("nats", []string{m.program("nats-server"), "-c", path}); err != nil {
		return err
	}
	if err := m.start("provision", []string{binnacle, "provision", "--data", m.data, "--nats", "nats://" + m.nats}); err != nil {
		return err
	}
	for _, s := range m.services {
		if err := m.start(s, []string{m.program(s)}); err != nil {
			return err
		}
	}
	return nil
}

// program returns the path of a service's program.
func (m *mesh) program(service string) string { return filepath.Join(m.bin, "svc", service) }

// env returns the environment of a process of the mesh, and creates the folder of its state.
// Variables of dev's own environment take precedence, so that a developer can set, for
// example, BINNACLE_LLM.
func (m *mesh) env(service string) []string {
	state := filepath.Join(m.data, service)
	_ = os.MkdirAll(state, 0o755)
	// Each service reads the variables of its own settings and ignores the others.
	env := []string{"BINNACLE_NATS=nats://" + m.nats, "BINNACLE_DURABILITY=process", "BINNACLE_KEYS=" + filepath.Join(m.data, "keys"), "BINNACLE_STATE=" + state,
		"BINNACLE_LISTEN=" + m.addr, "BINNACLE_PACKS=" + filepath.Join(m.bin, "packs")}
	return append(env, os.Environ()...)
}

// start starts a process. Each line of its output is printed with the process's name
// before it.
func (m *mesh) start(name string, argv []string) error {
	p := &proc{cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Env = m.env(name)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // own process group: Ctrl-C reaches only dev, which stops the processes in order
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		return err
	}
	m.procs[name] = p
	fmt.Printf("dev: %s runs as process %d\n", name, p.cmd.Process.Pid)
	go func() {
		m.copy(name, out)
		if err := p.cmd.Wait(); err != nil {
			fmt.Printf("dev: %s ended: %v\n", name, err)
		}
		close(p.done)
	}()
	return nil
}

// copy prints each line of a process's output after the process's name. It discards the
// output from the first line of more than 1 MiB on.
func (m *mesh) copy(name string, r io.Reader) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		m.mu.Lock()
		fmt.Printf("%-14s %s\n", name, in.Text())
		m.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r)
}

// stop sends SIGTERM to a process, and kills it if it has not exited after ten seconds.
func (m *mesh) stop(name string) {
	p := m.procs[name]
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	delete(m.procs, name)
}

// stopAll stops all services concurrently and waits until they have exited. Then it stops
// the provisioner and NATS.
func (m *mesh) stopAll() {
	var wg sync.WaitGroup
	for _, s := range m.services {
		if p := m.procs[s]; p != nil {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_ = p.cmd.Process.Signal(syscall.SIGTERM)
				<-p.done
			}()
		}
	}
	wg.Wait()
	m.stop("provision")
	m.stop("nats")
}

// ready waits until the gateway reports that the mesh is ready. It returns an error when
// ctx is done or after a minute.
func (m *mesh) ready(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		resp, err := http.Get("http://" + m.addr + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s/readyz did not return 200 within a minute", m.addr)
}

// update rebuilds the services whose programs contain packages of the changed folders,
// restarts them one after the other, and waits until the mesh is ready. It stops no
// service before all builds have succeeded.
func (m *mesh) update(ctx context.Context, dirs []string) error {
	all, err := list(ctx, "work")
	if err != nil {
		return err
	}
	touched := changed(dirs, all)
	var services []string
	for _, s := range m.services {
		if p := all[module+"services/"+s]; p != nil && p.needs(touched) {
			services = append(services, s)
		}
	}
	if len(services) == 0 {
		return nil
	}
	began := time.Now()
	fmt.Printf("dev: %s changed; building %s\n", strings.Join(dirs, ", "), strings.Join(services, ", "))
	for _, s := range services {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", m.ldflags, "-o", m.program(s)+".new", "./services/"+s)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s does not build: %w\n%s", s, err, out)
		}
	}
	for _, s := range services {
		if err := os.Rename(m.program(s)+".new", m.program(s)); err != nil {
			return err
		}
		m.stop(s)
		if err := m.start(s, []string{m.program(s)}); err != nil {
			return err
		}
	}
	if err := m.ready(ctx); err != nil {
		return err
	}
	fmt.Printf("dev: restarted %s in %v\n", strings.Join(services, ", "), time.Since(began).Round(time.Millisecond))
	return nil
}

// needs reports whether a package, or one of its dependencies, is among the given
// packages.
func (p *listed) needs(packages map[string]bool) bool {
	if packages[p.ImportPath] {
		return true
	}
	for _, d := range p.Deps {
		if packages[d] {
			return true
		}
	}
	return false
}
