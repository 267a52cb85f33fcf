package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// Call is a proposal: data of <service>.call_proposed.v1. Who calls stands in
// the envelope; nothing in here grants authority except Scopes, which the
// edge copied from the verified token.
type Call struct {
	Args          Content  `json:"args"`
	Deadline      string   `json:"deadline"` // when the caller stops waiting
	ID            string   `json:"id"`
	IdemKey       string   `json:"idempotency_key,omitempty"`
	Kind          string   `json:"kind"`             // llm.chat, tool.<pack>, vault.<verb> …
	Parent        string   `json:"parent,omitempty"` // live call this one is nested in
	ParentSession string   `json:"parent_session,omitempty"`
	Scopes        []string `json:"scopes"`
	Stream        bool     `json:"stream,omitempty"` // caller reads transient frames
	Tool          string   `json:"tool"`
}

// AppendCanonical implements the document encoding.
func (c *Call) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Append("args", c.Args.AppendCanonical)
	w.Str("deadline", c.Deadline)
	w.Str("id", c.ID)
	w.OptStr("idempotency_key", c.IdemKey)
	w.Str("kind", c.Kind)
	w.OptStr("parent", c.Parent)
	w.OptStr("parent_session", c.ParentSession)
	w.Strs("scopes", c.Scopes)
	w.OptBool("stream", c.Stream)
	w.Str("tool", c.Tool)
	return w.End()
}

// Tool is what an executor declares it can do: data of
// <service>.tool_registered.v1. Schemas are canonical JSON Schema 2020-12.
type Tool struct {
	Description  string        `json:"description"`
	Executor     string        `json:"executor"`
	InputSchema  Raw           `json:"input_schema"`
	Kind         string        `json:"kind"`
	OutputSchema Raw           `json:"output_schema"`
	Pack         string        `json:"pack_digest,omitempty"` // of the program a pack runs
	Rerunnable   bool          `json:"rerunnable,omitempty"`  // safe to run again after a crash
	Sandbox      *Sandbox      `json:"sandbox,omitempty"`     // what the tool asks for; policy may lower it
	Secrets      []SecretGrant `json:"secrets,omitempty"`
	Tool         string        `json:"tool"`
	Version      string        `json:"version"`
}

// Raw is canonical JSON kept as it is.
type Raw []byte

// UnmarshalJSON keeps the bytes.
func (r *Raw) UnmarshalJSON(b []byte) error { *r = append((*r)[:0], b...); return nil }

// MarshalJSON returns the bytes.
func (r Raw) MarshalJSON() ([]byte, error) {
	if len(r) == 0 {
		return []byte("null"), nil
	}
	return r, nil
}

// AppendCanonical implements the document encoding.
func (t *Tool) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Str("description", t.Description)
	w.Str("executor", t.Executor)
	w.Raw("input_schema", t.InputSchema)
	w.Str("kind", t.Kind)
	w.Raw("output_schema", t.OutputSchema)
	w.OptStr("pack_digest", t.Pack)
	w.OptBool("rerunnable", t.Rerunnable)
	if t.Sandbox != nil {
		w.Append("sandbox", t.Sandbox.AppendCanonical)
	}
	canon.List(&w, "secrets", t.Secrets, SecretGrant.AppendCanonical)
	w.Str("tool", t.Tool)
	w.Str("version", t.Version)
	return w.End()
}

// SecretGrant permits one named secret, usable only towards the hosts.
type SecretGrant struct {
	Hosts []string `json:"hosts,omitempty"`
	Name  string   `json:"name"`
}

// AppendCanonical implements the document encoding.
func (s SecretGrant) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.OptStrs("hosts", s.Hosts)
	w.Str("name", s.Name)
	return w.End()
}

// Sandbox bounds an execution. In an intent it is a ceiling: the executor may
// enforce less time or memory, never more.
type Sandbox struct {
	CPUMillis   int64  `json:"cpu_millis"`   // thousandths of one core
	MemoryMiB   int64  `json:"memory_mib"`   //
	OutputBytes int64  `json:"output_bytes"` // stdout cap
	Pids        int64  `json:"pids"`
	Tier        string `json:"tier"`    // weakest isolation allowed: "process" or "container"
	WallMS      int64  `json:"wall_ms"` // wall clock
}

// AppendCanonical implements the document encoding.
func (s *Sandbox) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Int("cpu_millis", s.CPUMillis)
	w.Int("memory_mib", s.MemoryMiB)
	w.Int("output_bytes", s.OutputBytes)
	w.Int("pids", s.Pids)
	w.Str("tier", s.Tier)
	w.Int("wall_ms", s.WallMS)
	return w.End()
}
