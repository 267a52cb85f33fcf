package sessionrunner

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/held"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/terminal"
)

// heldCall is a call for held sandboxes that this instance has claimed, or that another
// instance has forwarded to it.
type heldCall struct {
	tenant, actor, session, id, kind string
	key                              string          // content key of the contents of the call, or ""
	cause                            *contract.Event // nil for a call that another instance has claimed
	wall                             time.Duration   // maximum time of a command
	args                             heldArgs
	sandbox                          *held.Sandbox
	egress                           *sandbox.Egress // proxy of the call; nil means no network
	sent                             int64           // bytes that were transferred to and from the proxy
	pipe                             net.Conn        // standard input and output of the command of an MCP server; else nil
	files                            *secretFiles    // of the command of an MCP server; nil means none
}

// heldArgs are the arguments of the calls for held sandboxes.
type heldArgs struct {
	Sandbox   string        `json:"sandbox"`
	Image     string        `json:"image"`
	Unpinned  bool          `json:"unpinned"`
	CPUMillis int64         `json:"cpu_millis"`
	MemoryMiB int64         `json:"memory_mib"`
	Pids      int64         `json:"pids"`
	DiskMiB   int64         `json:"disk_mib"`
	IdleMS    int64         `json:"idle_ms"`
	LifeMS    int64         `json:"life_ms"`
	Command   []string      `json:"command"`
	Detach    bool          `json:"detach"`
	Dir       string        `json:"dir"`
	Env       []string      `json:"env"`
	Stdin     string        `json:"stdin"`
	StdinFrom string        `json:"stdin_artifact"`
	From      string        `json:"content_artifact"`
	TimeoutMS int64         `json:"timeout_ms"`
	Exec      string        `json:"exec"`
	Stream    string        `json:"stream"`
	Cursor    int64         `json:"cursor"`
	Limit     int64         `json:"limit"`
	WaitMS    int64         `json:"wait_ms"`
	Path      string        `json:"path"`
	Content   *string       `json:"content"`
	Base64    bool          `json:"base64"`
	Append    bool          `json:"append"`
	Offset    int64         `json:"offset"`
	Ended     bool          `json:"ended"`
	KeyDigest string        `json:"key_digest"`
	Terminal  *terminalSize `json:"terminal"`
	workArgs
}

// handle executes a call for held sandboxes, after it has read every event that was stored
// before into the view.
func (h *holder) handle(ctx context.Context, w *execute.Work) execute.Result {
	c := &heldCall{tenant: w.Event.Tenant, actor: w.Event.Actor, session: w.Event.Session, id: w.Call.ID, kind: w.Call.Kind, key: w.Call.KeyID(), cause: w.Event, wall: maxExecMS * time.Millisecond}
	if err := json.Unmarshal(w.Args, &c.args); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "arguments: %v", err)
	}
	if err := h.follower.Poll(ctx); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the list of sandboxes cannot be read: %v", err)
	}
	switch c.kind {
	case kindCreate:
		return create(ctx, h, c, *w.Intent.Sandbox)
	case kindList:
		return h.list(c)
	}
	if res := h.find(c); res.ErrorCode != "" {
		return res
	}
	if w.Intent.Sandbox != nil {
		if c.wall = time.Duration(w.Intent.Sandbox.WallMS) * time.Millisecond; !permitted(&c.sandbox.Data, w.Intent.Sandbox) {
			return execute.Fail(contract.CodeSandboxUnavailable, "policy now permits less than the limits of sandbox %s: create another one", c.sandbox.ID)
		}
	}
	if withEgress(c.kind) {
		var err error
		if c.egress, err = h.network(ctx, w); err != nil {
			return execute.Fail(contract.CodeEgressRefused, "%v", err)
		}
	}
	if c.sandbox.Holder != h.env.Instance {
		return h.forward(ctx, c, w.Args)
	}
	return h.local(ctx, c)
}

// permitted reports whether an intent permits the tier of held sandboxes, and the CPU, memory,
// process and output limits of a sandbox.
func permitted(s *events.SandboxCreated, most *contract.Sandbox) bool {
	return guard.TierSatisfies(heldTier, most.Tier) && s.MemoryMib <= most.MemoryMiB && s.CpuMillis <= most.CPUMillis && s.Pids <= most.Pids && s.OutputBytes <= most.OutputBytes
}

// find sets c.sandbox to the sandbox that a call names, or to the newest open one of
// its session. The sandbox of another tenant, principal or session is not found. If
// there is none, or it has ended, the result has an error code.
func (h *holder) find(c *heldCall) execute.Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.args.Sandbox == "" {
		if c.sandbox = h.view.Current(c.tenant, c.actor, c.session); c.sandbox == nil {
			code := contract.CodeNotFound
			if !strings.HasPrefix(c.kind, operateKinds) {
				code = contract.CodeSessionUnavailable
			}
			return execute.Fail(code, "the session has no open sandbox: call sandbox.create first")
		}
		return execute.Result{}
	}
	c.sandbox = h.view.Get(c.tenant, c.args.Sandbox)
	switch {
	case !c.sandbox.May(c.tenant, c.actor, c.session):
		return execute.Fail(contract.CodeNotFound, "sandbox %s not found in this session", c.args.Sandbox)
	case c.sandbox.Ended != "":
		return execute.Fail(contract.CodeSandboxEnded, "sandbox %s has ended: %s", c.sandbox.ID, c.sandbox.Ended)
	}
	return execute.Result{}
}

// local executes a call for an open sandbox of this instance.
func (h *holder) local(ctx context.Context, c *heldCall) execute.Result {
	h.mu.Lock()
	b := h.boxes[c.sandbox.ID]
	h.mu.Unlock()
	if b == nil {
		return execute.Fail(contract.CodeUnavailable, "the container of sandbox %s is not available yet: call again", c.sandbox.ID)
	}
	b.touch(h.env.Emit.Now())
	defer func() { b.touch(h.env.Emit.Now()) }()
	do := map[string]func(context.Context, *heldCall, *box) execute.Result{
		kindExec: h.exec, kindEgress: h.exec, kindLogs: logs, kindWrite: writeFile, kindRead: readFile, kindFiles: listFiles, kindKeepAlive: h.keepAlive, kindTerminate: h.terminate, kindAttach: attachTerminal,
		kindCommand: runCommand, kindPython: runCommand, kindNode: runCommand, kindFSRead: fsRead, kindFSWrite: fsWrite, kindFSList: fsList, kindFSPatch: fsPatch, kindFSDelete: fsDelete,
		kindGitCommit: gitCommit, kindGitDiff: gitDiff, kindGitLog: gitLog,
		kindRepoFetch: repoFetch, kindRepoMap: repoMap, kindRepoPush: repoPush,
	}[c.kind]
	if do == nil {
		return execute.Fail(contract.CodeInvalidInput, "%s is not a call for an open sandbox", c.kind)
	}
	if res := c.attach(ctx, h.env); res.ErrorCode != "" {
		return res
	}
	res := do(ctx, c, b)
	if c.kind != kindTerminate {
		u := b.Usage()
		u.EgressBytes = c.sent
		res.Usage = &u
	}
	if res.ErrorCode == "" {
		res.Attestation = b.Attestation(c.sandbox.Data.Image, limitsOf(&c.sandbox.Data), c.sandbox.Data.DiskMib, c.egress)
	}
	return res
}

// limitsOf returns the limits of a sandbox.
func limitsOf(s *events.SandboxCreated) contract.Sandbox {
	return contract.Sandbox{CPUMillis: s.CpuMillis, MemoryMiB: s.MemoryMib, OutputBytes: s.OutputBytes, Pids: s.Pids, Tier: heldTier, WallMS: s.LifeMS}
}

// output returns a successful result with a document.
func output(doc any) execute.Result {
	raw, err := json.Marshal(doc)
	if err == nil {
		raw, err = canon.Transform(nil, raw)
	}
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	return execute.Result{Output: raw}
}

// heldState describes a sandbox in outputs.
type heldState struct {
	Sandbox   string `json:"sandbox"`
	Image     string `json:"image"`
	Session   string `json:"session"`
	Instance  string `json:"instance"`
	Created   string `json:"created"`
	Used      string `json:"used"`
	Expires   string `json:"expires"`
	IdleMS    int64  `json:"idle_ms"`
	MemoryMiB int64  `json:"memory_mib"`
	Running   int    `json:"running"`
	Ended     string `json:"ended,omitempty"`
}

func stateOf(s *held.Sandbox) heldState {
	return heldState{Sandbox: s.ID, Image: s.Data.Image, Session: s.Data.Session, Instance: s.Holder, Created: contract.Time(s.Created), Used: contract.Time(s.Used),
		Expires: contract.Time(s.Expires()), IdleMS: s.Data.IdleMS, MemoryMiB: s.Data.MemoryMib, Running: len(s.Running), Ended: s.Ended}
}

// list returns the caller's sandboxes in all sessions. Those that have ended are omitted
// unless the argument ended is true.
func (h *holder) list(c *heldCall) execute.Result {
	h.mu.Lock()
	all := h.view.List(func(s *held.Sandbox) bool {
		return s.Tenant == c.tenant && s.Data.Actor == c.actor && (c.args.Ended || s.Ended == "")
	})
	h.mu.Unlock()
	out := make([]heldState, 0, len(all))
	for _, s := range all {
		out = append(out, stateOf(s))
	}
	return output(map[string]any{"sandboxes": out})
}

// create creates a sandbox on this instance.
func create(ctx context.Context, h *holder, c *heldCall, most contract.Sandbox) execute.Result {
	b, res := h.hold(ctx, c, most)
	if b == nil {
		return res
	}
	res = output(stateOf(c.sandbox))
	res.Attestation = b.Attestation(c.sandbox.Data.Image, limitsOf(&c.sandbox.Data), c.sandbox.Data.DiskMib, nil)
	return res
}

// hold creates the sandbox of a call on this instance, sets c.sandbox and returns its container.
// sandbox_created is stored first, so that instances that create sandboxes concurrently agree on
// which ones exceed the limits. If the sandbox cannot be created, hold returns nil and the
// result of the call.
func (h *holder) hold(ctx context.Context, c *heldCall, most contract.Sandbox) (*box, execute.Result) {
	if h.runner == nil {
		return nil, execute.Fail(contract.CodeSandboxUnavailable, "a held sandbox needs tier container: configure a containerd socket (BINNACLE_CONTAINERD) on the session-runner")
	}
	if !guard.TierSatisfies(heldTier, most.Tier) {
		return nil, execute.Fail(contract.CodeSandboxUnavailable, "tier %s is required, and held sandboxes are of tier %s", most.Tier, heldTier)
	}
	if most.UID == contract.OwnUID && !h.runner.OwnUID() {
		return nil, execute.Fail(contract.CodeSandboxUnavailable, "uid per_run is required, and containers share a user id here")
	}
	img, res := h.image(c)
	if img == nil {
		return nil, res
	}
	data := events.SandboxCreated{Actor: c.actor, CallID: c.id, Session: c.session, Instance: h.env.Instance, Host: h.runner.Host(), Image: img.Digest,
		CpuMillis: least(c.args.CPUMillis, most.CPUMillis), MemoryMib: least(c.args.MemoryMiB, most.MemoryMiB), Pids: least(c.args.Pids, most.Pids),
		OutputBytes: most.OutputBytes, DiskMib: c.args.DiskMiB, IdleMS: c.args.IdleMS, LifeMS: c.args.LifeMS}
	id := emit.NewID(contract.IDSandbox)
	defer h.beginCreation(id)()
	if err := h.change(ctx, c.tenant, id, 0, contract.EventSandboxCreated, c.cause, func(*held.Sandbox) (canon.Document, error) { return &data, nil }); err != nil {
		return nil, execute.Fail(contract.CodeUnavailable, "the sandbox cannot be recorded: %v", err)
	}
	ctx = context.WithoutCancel(ctx) // from here on the end must be recorded
	if err := h.follower.Poll(ctx); err != nil {
		return nil, execute.Fail(contract.CodeUnavailable, "the list of sandboxes cannot be read: %v", err)
	}
	h.mu.Lock()
	s := h.view.Get(c.tenant, id)
	tooMany := s != nil && (!s.Server() && h.view.Over(s, "", h.PerTenant) || h.view.Over(s, h.env.Instance, h.Max))
	h.mu.Unlock()
	if s == nil {
		return nil, execute.Fail(contract.CodeInternal, "sandbox %s is not in the list of sandboxes", id)
	}
	if tooMany {
		_ = h.end(ctx, s, c.id, held.Refused)
		return nil, execute.Fail(contract.CodeTooManySandboxes, "the tenant has %d open sandboxes, or this instance %d: end one of them", h.PerTenant, h.Max)
	}
	ctr, err := h.runner.Hold(img, containerd.HeldSpec{ID: id, Limits: limitsOf(&data), DiskMiB: data.DiskMib, Egress: c.egress != nil || h.egress(), Life: time.Until(s.Expires()) + time.Second})
	if err != nil {
		_ = h.end(ctx, s, c.id, held.Failed)
		return nil, execute.Fail(contract.CodeSandboxFailed, "the sandbox could not be made: %v", err)
	}
	b := &box{Held: ctr, tenant: c.tenant, used: h.env.Emit.Now()}
	h.mu.Lock()
	h.boxes[id] = b
	h.mu.Unlock()
	c.sandbox = s
	return b, execute.Result{}
}

// image returns the image that a call names. A name that no lock file pins is the name of an
// archive, and only a call whose argument unpinned is true may use it: policy decides on that
// argument. If the image cannot be used, image returns nil and the result of the call.
func (h *holder) image(c *heldCall) (*containerd.HeldImage, execute.Result) {
	lock, err := h.lock()
	if err != nil {
		return nil, execute.Fail(contract.CodeSandboxFailed, "%v", err)
	}
	digest, err := lock.Resolve(c.args.Image)
	if errors.Is(err, pack.ErrUnpinned) {
		if !c.args.Unpinned {
			if c.kind != kindCreate { // the image of an MCP server is always pinned
				return nil, execute.Fail(contract.CodeImageUnpinned, "%v", err)
			}
			return nil, execute.Fail(contract.CodeImageUnpinned, "%v; or call with \"unpinned\": true, if policy allows it", err)
		}
		digest, err = h.runner.Named(c.args.Image)
	}
	if err != nil {
		return nil, execute.Fail(contract.CodeSandboxFailed, "image %s cannot be used: %v", c.args.Image, err)
	}
	img, err := h.runner.OpenImage(digest)
	if missing := (*containerd.MissingImage)(nil); errors.As(err, &missing) {
		return nil, execute.Fail(contract.CodeImageMissing, "image %s: %v", c.args.Image, missing)
	}
	if err != nil {
		return nil, execute.Fail(contract.CodeSandboxFailed, "image %s cannot be used: %v", c.args.Image, err)
	}
	return img, execute.Result{}
}

// beginCreation makes tend ignore a sandbox until the returned function is called. A sandbox
// without a container would otherwise be recorded as lost.
func (h *holder) beginCreation(id string) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.creating[id] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.creating, id)
	}
}

// least returns the smaller of a requested amount and a maximum; a requested amount of 0 is
// the maximum.
func least(want, most int64) int64 {
	if want == 0 {
		return most
	}
	return min(want, most)
}

// begun records that a command of a call starts. Otherwise the result has an error code.
func begun(ctx context.Context, h *holder, c *heldCall) execute.Result {
	s := c.sandbox
	err := h.change(ctx, c.tenant, s.ID, s.Seq, contract.EventSandboxExecStarted, c.cause, func(now *held.Sandbox) (canon.Document, error) {
		d, err := now.Start(c.id, c.id)
		if err != nil {
			return nil, err
		}
		return d, nil
	})
	switch {
	case errors.Is(err, held.ErrEnded):
		return execute.Fail(contract.CodeSandboxEnded, "sandbox %s has ended", s.ID)
	case errors.Is(err, held.ErrBusy):
		return execute.Fail(contract.CodeTooManySandboxes, "%d commands run in sandbox %s: wait for one of them", held.MaxRunning, s.ID)
	case err != nil:
		return execute.Fail(contract.CodeUnavailable, "the command cannot be recorded: %v", err)
	}
	return execute.Result{}
}

// exec runs a command, and waits for its end unless the call detaches it.
func (h *holder) exec(ctx context.Context, c *heldCall, b *box) execute.Result {
	s := c.sandbox
	if c.args.Terminal != nil && len(c.args.Stdin) > 0 {
		return execute.Fail(contract.CodeInvalidInput, "stdin: leave it out, or terminal")
	}
	if res := begun(ctx, h, c); res.ErrorCode != "" {
		return res
	}
	wall := c.wall
	base := ctx
	if c.args.Detach {
		base, wall = context.WithoutCancel(ctx), time.Until(s.Expires())
	}
	if c.args.TimeoutMS > 0 {
		wall = min(wall, time.Duration(c.args.TimeoutMS)*time.Millisecond)
	}
	x := &execution{stdout: &held.Ring{Max: s.Data.OutputBytes}, stderr: &held.Ring{Max: s.Data.OutputBytes}, done: make(chan struct{})}
	if c.args.Terminal != nil {
		x.term = terminal.New(x.stdout)
	}
	var running context.Context
	running, x.cancel = context.WithCancel(base)
	b.add(c.id, x)
	go h.attend(running, c, b, x, wall)
	if c.args.Detach {
		return output(map[string]any{"exec": c.id, "sandbox": s.ID, "status": held.ExecRunning})
	}
	<-x.done
	switch {
	case errors.Is(x.failure, containerd.ErrHeldBusy):
		return execute.Fail(contract.CodeTooManySandboxes, "%v: wait for its end", x.failure)
	case errors.Is(x.failure, containerd.ErrHeldNoEgress):
		return execute.Fail(contract.CodeSandboxUnavailable, "%v: create another one", x.failure)
	case x.failure != nil:
		return execute.Fail(contract.CodeSandboxFailed, "the command could not be run: %v", x.failure)
	}
	half := int64(maxFile / 2)
	out, _, skippedOut := x.stdout.Read(0, half)
	errOut, _, skippedErr := x.stderr.Read(0, half)
	return output(map[string]any{"exec": c.id, "sandbox": s.ID, "status": x.status, "exit_code": x.exit,
		"stdout": strings.ToValidUTF8(string(out), "\uFFFD"), "stderr": strings.ToValidUTF8(string(errOut), "\uFFFD"),
		"stdout_bytes": x.stdout.Written(), "stderr_bytes": x.stderr.Written(),
		"truncated": skippedOut+skippedErr > 0 || x.stdout.Written() > half || x.stderr.Written() > half})
}

// attend runs a command to its end, and records the end.
func (h *holder) attend(ctx context.Context, c *heldCall, b *box, x *execution, wall time.Duration) {
	defer x.cancel()
	cmd := containerd.Command{ID: c.id, Argv: c.args.Command, Env: c.args.Env, Dir: c.args.Dir, Stdin: []byte(c.args.Stdin), Wall: wall, Stdout: x.stdout, Stderr: x.stderr, Egress: c.egress, Bytes: &c.sent}
	if c.pipe != nil {
		cmd.Input, cmd.Stdout = c.pipe, io.MultiWriter(x.stdout, c.pipe)
	}
	leave := x.connect(c, &cmd)
	exit, timedOut := 0, false
	err := c.files.write(ctx, &cmd, b)
	if err == nil {
		exit, timedOut, err = b.Exec(ctx, cmd)
	}
	x.failure = err
	switch {
	case err != nil:
		x.status = held.ExecFailed
	case timedOut:
		x.status = held.ExecTimedOut
	case ctx.Err() != nil:
		x.status = held.ExecCancelled
	default:
		x.status, x.exit = held.ExecExited, exit
	}
	b.touch(h.env.Emit.Now())
	recorded, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer stop()
	h.stopped(recorded, c.sandbox, events.SandboxExecEnded{Exec: c.id, ExitCode: int64(x.exit), Status: x.status, StdoutBytes: x.stdout.Written(), StderrBytes: x.stderr.Written()})
	leave()
	close(x.done)
}

// logs returns output of a command from a cursor on. With wait_ms it waits until there is
// output after the cursor, the command has ended, that time has passed or ctx is done.
func logs(ctx context.Context, c *heldCall, b *box) execute.Result {
	x := b.get(c.args.Exec)
	if x == nil {
		return missingExec(c)
	}
	ring := x.stdout
	if c.args.Stream == "stderr" {
		ring = x.stderr
	}
	wait := time.NewTimer(time.Duration(c.args.WaitMS) * time.Millisecond)
	defer wait.Stop()
	for over := c.args.WaitMS == 0; !over; {
		more := ring.Wake()
		if ring.Written() > c.args.Cursor {
			break
		}
		select {
		case <-more:
		case <-x.done:
			over = true
		case <-wait.C:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
	doc := map[string]any{"exec": c.args.Exec, "sandbox": c.sandbox.ID, "status": held.ExecRunning}
	select {
	case <-x.done: // before Read, so that the output of an ended command is complete
		doc["status"], doc["exit_code"] = x.status, x.exit
	default:
	}
	data, next, skipped := ring.Read(c.args.Cursor, c.args.Limit)
	doc["cursor"], doc["skipped"], doc["end"] = next, skipped, ring.Written()
	text(doc, data)
	return output(doc)
}

// text adds bytes to a document: as the member text if they are UTF-8, else as base64.
func text(doc map[string]any, data []byte) {
	if utf8.Valid(data) {
		doc["text"] = string(data)
	} else {
		doc["base64"] = base64.StdEncoding.EncodeToString(data)
	}
}

// keepAlive restarts the idle time of a sandbox.
func (h *holder) keepAlive(ctx context.Context, c *heldCall, _ *box) execute.Result {
	err := h.change(ctx, c.tenant, c.sandbox.ID, c.sandbox.Seq, contract.EventSandboxRenewed, c.cause, func(now *held.Sandbox) (canon.Document, error) {
		d, err := now.Renew(c.id)
		if err != nil {
			return nil, err
		}
		return d, nil
	})
	if errors.Is(err, held.ErrEnded) {
		return execute.Fail(contract.CodeSandboxEnded, "sandbox %s has ended", c.sandbox.ID)
	}
	if err != nil {
		return execute.Fail(contract.CodeUnavailable, "the renewal cannot be recorded: %v", err)
	}
	return output(map[string]any{"sandbox": c.sandbox.ID, "expires": contract.Time(c.sandbox.Expires()), "idle_ms": c.sandbox.Data.IdleMS})
}

// terminate ends a sandbox. The end is stored before the container is removed.
func (h *holder) terminate(ctx context.Context, c *heldCall, _ *box) execute.Result {
	if err := h.end(ctx, c.sandbox, c.id, held.Terminated); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the end of the sandbox cannot be recorded: %v", err)
	}
	h.drop(c.sandbox.ID, true)
	return output(map[string]any{"sandbox": c.sandbox.ID, "ended": held.Terminated})
}
