package contract

import (
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Call is a proposal: data of <service>.call_proposed. The envelope names the
// caller; nothing in here grants authority except Scopes, which the gateway copied
// from the verified token.
type Call struct {
	Args          Content  `json:"args"`
	Body          *Content `json:"body,omitempty"`       // what the caller brought beside the args, which name its commitment; policy does not see it
	Deadline      string   `json:"deadline"`             // when the caller stops waiting
	Delegation    string   `json:"delegation,omitempty"` // id of the delegation OnBehalfOf rests on
	ID            string   `json:"id"`
	IdemKey       string   `json:"idempotency_key,omitempty"`
	Kind          string   `json:"kind"`                   // llm.chat, tool.<pack>, vault.<verb> …
	Labels        []string `json:"labels,omitempty"`       // data classes the proposing service saw in what the caller brought
	OnBehalfOf    string   `json:"on_behalf_of,omitempty"` // principal that the actor claims to act for; policy checks
	Parent        string   `json:"parent,omitempty"`       // live call this one is nested in
	ParentSession string   `json:"parent_session,omitempty"`
	ReportWithin  int64    `json:"report_within_ms,omitempty"`  // the caller executes the call itself and reports its outcome within this time; absent: the tool's executor does
	Requested     string   `json:"requested_session,omitempty"` // digest of a session id that the caller named and may not use; policy denies
	Scopes        []string `json:"scopes"`
	SessionName   string   `json:"session_name,omitempty"` // the caller's own name for the session
	Stream        bool     `json:"stream,omitempty"`       // caller reads transient frames
	Token         string   `json:"token,omitempty"`        // id (jti) of the bearer token that the caller showed
	Tool          string   `json:"tool"`
}

// Canonical implements canon.Document.
func (x *Call) Canonical(c *canon.Codec) {
	c.Doc("args", &x.Args)
	canon.OptDoc(c, "body", &x.Body)
	c.Str("deadline", &x.Deadline)
	c.OptStr("delegation", &x.Delegation)
	c.Str("id", &x.ID)
	c.OptStr("idempotency_key", &x.IdemKey)
	c.Str("kind", &x.Kind)
	c.OptStrs("labels", &x.Labels)
	c.OptStr("on_behalf_of", &x.OnBehalfOf)
	c.OptStr("parent", &x.Parent)
	c.OptStr("parent_session", &x.ParentSession)
	c.OptInt("report_within_ms", &x.ReportWithin)
	c.OptStr("requested_session", &x.Requested)
	c.Strs("scopes", &x.Scopes)
	c.OptStr("session_name", &x.SessionName)
	c.OptBool("stream", &x.Stream)
	c.OptStr("token", &x.Token)
	c.Str("tool", &x.Tool)
}

// KeyClient is the prefix of the client of an event whose caller presented a
// virtual key; the key's id follows.
const KeyClient = "key/"

// Contents returns the contents that the call refers to: its args, and its body if
// it has one.
func (x *Call) Contents() []Content {
	if x.Body == nil {
		return []Content{x.Args}
	}
	return []Content{x.Args, *x.Body}
}

// Tool declares what an executor can do: data of <service>.tool_registered.
// Schemas are canonical JSON Schema 2020-12.
type Tool struct {
	Class        string        `json:"class,omitempty"` // E0 read-only … E4 irreversible; empty = E3
	Description  string        `json:"description"`
	Egress       []string      `json:"egress_hosts,omitempty"` // hosts it talks to
	Executor     string        `json:"executor"`
	InputSchema  Raw           `json:"input_schema"`
	Kind         string        `json:"kind"`
	Labels       []string      `json:"labels,omitempty"` // data classes its output carries, e.g. "web"
	OutputSchema Raw           `json:"output_schema"`
	Pack         string        `json:"pack_digest,omitempty"` // of the program a pack runs
	Rerunnable   bool          `json:"rerunnable,omitempty"`  // safe to run again after a crash
	Reserve      *Amounts      `json:"reserve,omitempty"`     // most that one call uses; absent measures use nothing
	Sandbox      *Sandbox      `json:"sandbox,omitempty"`     // what the tool asks for; policy may lower it
	Secrets      []SecretGrant `json:"secrets,omitempty"`
	Tool         string        `json:"tool"`
	Version      string        `json:"version"`
}

// ToolApproved is the data of policy.tool_approved: the tool document with this
// digest may be called; another digest of its kind is drift.
type ToolApproved struct {
	Digest string `json:"digest"`
	Kind   string `json:"kind"`
}

// Canonical implements canon.Document.
func (t *ToolApproved) Canonical(c *canon.Codec) {
	c.Str("digest", &t.Digest)
	c.Str("kind", &t.Kind)
}

// Raw is a value of canonical JSON, stored byte for byte.
type Raw []byte

// UnmarshalJSON copies the bytes.
func (r *Raw) UnmarshalJSON(b []byte) error { *r = append((*r)[:0], b...); return nil }

// MarshalJSON returns the bytes themselves, and null where there are none.
func (r Raw) MarshalJSON() ([]byte, error) {
	if len(r) == 0 {
		return []byte("null"), nil
	}
	return r, nil
}

// Canonical implements canon.Document.
func (t *Tool) Canonical(c *canon.Codec) {
	c.OptStr("class", &t.Class)
	c.Str("description", &t.Description)
	c.OptStrs("egress_hosts", &t.Egress)
	c.Str("executor", &t.Executor)
	c.Raw("input_schema", (*[]byte)(&t.InputSchema))
	c.Str("kind", &t.Kind)
	c.OptStrs("labels", &t.Labels)
	c.Raw("output_schema", (*[]byte)(&t.OutputSchema))
	c.OptStr("pack_digest", &t.Pack)
	c.OptBool("rerunnable", &t.Rerunnable)
	canon.OptDoc(c, "reserve", &t.Reserve)
	canon.OptDoc(c, "sandbox", &t.Sandbox)
	canon.List(c, "secrets", &t.Secrets)
	c.Str("tool", &t.Tool)
	c.Str("version", &t.Version)
}

// SecretGrant permits one named secret, usable only towards the hosts.
type SecretGrant struct {
	Hosts []string `json:"hosts,omitempty"`
	Name  string   `json:"name"`
}

// Pattern reports whether the grant names several secrets ("llm.*"), which the
// executor fetches one by one, for its own use.
func (s *SecretGrant) Pattern() bool { return strings.HasSuffix(s.Name, ".*") }

// Permits reports whether the grant covers the secret of this name: the one it
// names, or one below its pattern.
func (s *SecretGrant) Permits(name string) bool {
	if s.Pattern() {
		return strings.HasPrefix(name, strings.TrimSuffix(s.Name, "*"))
	}
	return s.Name == name
}

// Canonical implements canon.Document.
func (s *SecretGrant) Canonical(c *canon.Codec) {
	c.OptStrs("hosts", &s.Hosts)
	c.Str("name", &s.Name)
}

// Sandbox bounds an execution. In an intent it is a ceiling: the executor may
// enforce less time or memory, never more.
type Sandbox struct {
	CPUMillis   int64  `json:"cpu_millis"`   // thousandths of one core
	MemoryMiB   int64  `json:"memory_mib"`   //
	OutputBytes int64  `json:"output_bytes"` // stdout cap
	Pids        int64  `json:"pids"`
	Tier        string `json:"tier"`          // weakest isolation allowed: "process" or "container"
	UID         string `json:"uid,omitempty"` // OwnUID: a user id that no other run has at the same time
	WallMS      int64  `json:"wall_ms"`       // wall clock
}

// OwnUID is the value of Sandbox.UID that demands a user id per run.
const OwnUID = "per_run"

// Canonical implements canon.Document.
func (s *Sandbox) Canonical(c *canon.Codec) {
	c.Int("cpu_millis", &s.CPUMillis)
	c.Int("memory_mib", &s.MemoryMiB)
	c.Int("output_bytes", &s.OutputBytes)
	c.Int("pids", &s.Pids)
	c.Str("tier", &s.Tier)
	c.OptStr("uid", &s.UID)
	c.Int("wall_ms", &s.WallMS)
}
