package contract

import (
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// Call is a proposal, the data of <service>.call_proposed. The event's envelope
// identifies the caller. No field of a Call grants authority except Scopes. A gateway
// copies Scopes from the verified credential of the caller.
type Call struct {
	Args          Content  `json:"args"`
	Body          *Content `json:"body,omitempty"`       // content that the args refer to by its commitment; policy does not read it
	Deadline      string   `json:"deadline"`             // when the caller stops waiting (TimeFormat)
	Delegation    string   `json:"delegation,omitempty"` // id of the delegation that the caller named for OnBehalfOf; policy checks it
	ID            string   `json:"id"`
	IdemKey       string   `json:"idempotency_key,omitempty"`
	Kind          string   `json:"kind"`                   // such as llm.chat, tool.<pack> or vault.<verb>
	Labels        []string `json:"labels,omitempty"`       // data classes that the proposing service found in the request, or of content of other sessions to which the request refers
	OnBehalfOf    string   `json:"on_behalf_of,omitempty"` // principal for whom the actor states that it acts; policy checks the statement
	Parent        string   `json:"parent,omitempty"`       // id of the running call that this one is nested in; empty if none
	ParentSession string   `json:"parent_session,omitempty"`
	ReportWithin  int64    `json:"report_within_ms,omitempty"`  // milliseconds from the decision within which the caller, which executes the call itself, reports its effect; absent = the tool's executor executes it
	Requested     string   `json:"requested_session,omitempty"` // digest of a session id that the caller named without the right to use it; policy denies such a call
	Scopes        []string `json:"scopes"`
	SessionName   string   `json:"session_name,omitempty"` // the caller's name for the session
	Stream        bool     `json:"stream,omitempty"`       // whether the caller reads the call's transient frames
	Token         string   `json:"token,omitempty"`        // id (jti) of the bearer token that the caller presented
	Tool          string   `json:"tool"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
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

// KeyClient is the prefix of Event.Client if the caller presented a virtual key. The id
// of the key follows it.
const KeyClient = "key/"

// LoginClient is the prefix of Event.Client of the calls with which a gateway
// records that a person has authenticated. The method follows it. The client
// of a credential never has this prefix.
const LoginClient = "login/"

// KeyID returns the id of the content key under which the call's body or, if that is not
// encrypted, its args are encrypted. It returns "" if neither is.
func (x *Call) KeyID() string {
	if x.Body != nil && x.Body.Encryption != nil {
		return x.Body.Encryption.KeyID
	}
	if x.Args.Encryption != nil {
		return x.Args.Encryption.KeyID
	}
	return ""
}

// Contents returns the contents that the call refers to: the args, and the body if there
// is one. The slice is new; its contents share Encryption with those of the call.
func (x *Call) Contents() []Content {
	if x.Body == nil {
		return []Content{x.Args}
	}
	return []Content{x.Args, *x.Body}
}

// Tool declares a tool of an executor and the calls that it accepts; it is the data of
// <service>.tool_registered and <service>.tool_retired. The schemas are canonical JSON
// Schema 2020-12. Decisions and approvals identify a Tool by its digest, which every
// change of a member changes.
type Tool struct {
	Class        string        `json:"class,omitempty"` // effect class, E0 (read-only) to E4 (irreversible); empty = E3
	Description  string        `json:"description"`
	DiskMiB      int64         `json:"disk_mib,omitempty"`     // size of each writable folder of the sandbox in MiB; 0 means 64
	EgressRules  []EgressRule  `json:"egress,omitempty"`       // requests that the tool may make through the egress-broker, beside those to Egress
	Egress       []string      `json:"egress_hosts,omitempty"` // hosts to which the tool declares that it connects; policy compares them with the P0 ceilings
	Executor     string        `json:"executor"`
	Image        string        `json:"image_digest,omitempty"` // digest of the image in which the pack runs; empty = without an image
	InputSchema  Raw           `json:"input_schema"`
	Kind         string        `json:"kind"`
	Labels       []string      `json:"labels,omitempty"` // data classes of the output, such as "web"
	OutputSchema Raw           `json:"output_schema"`
	Pack         string        `json:"pack_digest,omitempty"` // digest of the pack's program; empty if the tool is not a pack
	Rerunnable   bool          `json:"rerunnable,omitempty"`  // whether a call that a crash interrupted may run again
	Reserve      *Amounts      `json:"reserve,omitempty"`     // the greatest amounts that one call may use; policy sets calls and risk_points itself, and estimates some of the measures that are zero
	Sandbox      *Sandbox      `json:"sandbox,omitempty"`     // limits that the tool needs; policy may set lower ones
	Secrets      []SecretGrant `json:"secrets,omitempty"`
	Tool         string        `json:"tool"`
	Version      string        `json:"version"`
}

// ToolApproved is the data of policy.tool_approved: calls of the kind may use the tool
// document with this digest. While the kind's registered document has another digest,
// its calls are denied as drift, unless policy is the executor.
type ToolApproved struct {
	Digest string `json:"digest"`
	Kind   string `json:"kind"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (t *ToolApproved) Canonical(c *canon.Codec) {
	c.Str("digest", &t.Digest)
	c.Str("kind", &t.Kind)
}

// Raw is a value of canonical JSON, which is stored and signed byte for byte.
type Raw []byte

// UnmarshalJSON implements json.Unmarshaler. It copies the bytes and does not
// check that they are canonical.
func (r *Raw) UnmarshalJSON(b []byte) error { *r = append((*r)[:0], b...); return nil }

// MarshalJSON implements json.Marshaler. It returns the bytes themselves, which
// the caller must not change, and null for an empty Raw.
func (r Raw) MarshalJSON() ([]byte, error) {
	if len(r) == 0 {
		return []byte("null"), nil
	}
	return r, nil
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (t *Tool) Canonical(c *canon.Codec) {
	c.OptStr("class", &t.Class)
	c.Str("description", &t.Description)
	c.OptInt("disk_mib", &t.DiskMiB)
	canon.List(c, "egress", &t.EgressRules)
	c.OptStrs("egress_hosts", &t.Egress)
	c.Str("executor", &t.Executor)
	c.OptStr("image_digest", &t.Image)
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

// SecretGrant permits the use of one named secret, or of all secrets that match a
// pattern. It names secrets and never holds their values. Hosts are the hosts for which
// the tool declares that it needs the secret.
type SecretGrant struct {
	Hosts []string `json:"hosts,omitempty"`
	Name  string   `json:"name"`
}

// Pattern reports whether the grant names several secrets with a pattern such as
// "llm.*". An executor fetches such a secret when its handler requests it, and fetches
// the other secrets of the intent before the handler runs.
func (s *SecretGrant) Pattern() bool { return strings.HasSuffix(s.Name, ".*") }

// Permits reports whether the grant covers the secret with this name: the secret that it
// names, or any secret that matches its pattern. NAME.previous matches a pattern only if NAME
// does, because it is the name of the previous version of the secret NAME.
func (s *SecretGrant) Permits(name string) bool {
	if s.Pattern() {
		return strings.HasPrefix(strings.TrimSuffix(name, PreviousSecret), strings.TrimSuffix(s.Name, "*"))
	}
	return s.Name == name
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (s *SecretGrant) Canonical(c *canon.Codec) {
	c.OptStrs("hosts", &s.Hosts)
	c.Str("name", &s.Name)
}

// Sandbox limits one execution. In an intent it is a ceiling: the executor may
// enforce lower limits, never higher ones.
type Sandbox struct {
	CPUMillis   int64  `json:"cpu_millis"`   // CPU quota in thousandths of a core
	MemoryMiB   int64  `json:"memory_mib"`   // memory in MiB (1 MiB = 2^20 bytes)
	OutputBytes int64  `json:"output_bytes"` // maximum size of stdout in bytes
	Pids        int64  `json:"pids"`
	Tier        string `json:"tier"`          // weakest permitted isolation: "process", "wasi", "container" or "microvm"
	UID         string `json:"uid,omitempty"` // OwnUID = a user id that no other run has at the same time; empty = any user id
	WallMS      int64  `json:"wall_ms"`       // wall-clock time in milliseconds
}

// OwnUID is the value of Sandbox.UID that requires a user id of its own for each
// run.
const OwnUID = "per_run"

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (s *Sandbox) Canonical(c *canon.Codec) {
	c.Int("cpu_millis", &s.CPUMillis)
	c.Int("memory_mib", &s.MemoryMiB)
	c.Int("output_bytes", &s.OutputBytes)
	c.Int("pids", &s.Pids)
	c.Str("tier", &s.Tier)
	c.OptStr("uid", &s.UID)
	c.Int("wall_ms", &s.WallMS)
}
