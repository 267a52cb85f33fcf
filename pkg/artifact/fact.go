package artifact

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// Stored is the data of artifact_stored.v1, which work records for a call that stores an artifact,
// and the session-runner for a file that a tool made and for an archive of packs that a call
// installs.
type Stored struct {
	Actor     string   `json:"actor"`
	Artifact  string   `json:"artifact"`
	CallID    string   `json:"call_id"`
	Index     string   `json:"index"`
	Inputs    []string `json:"inputs"`           // ids of the artifacts that the call had as inputs
	Kind      string   `json:"kind"`             // kind of the call
	Labels    []string `json:"labels,omitempty"` // name=value, sorted
	MediaType string   `json:"media_type"`
	Name      string   `json:"name"`
	RetainMS  int64    `json:"retain_ms"` // milliseconds for which the content is retained; 0 = without end
	Service   string   `json:"service"`   // service that stored the content
	Session   string   `json:"session"`
	Size      int64    `json:"size"`
	Upload    string   `json:"upload"`
}

// Canonical implements canon.Document.
func (d *Stored) Canonical(c *canon.Codec) {
	c.Str("actor", &d.Actor)
	c.Str("artifact", &d.Artifact)
	c.Str("call_id", &d.CallID)
	c.Str("index", &d.Index)
	c.Strs("inputs", &d.Inputs)
	c.Str("kind", &d.Kind)
	c.OptStrs("labels", &d.Labels)
	c.Str("media_type", &d.MediaType)
	c.Str("name", &d.Name)
	c.Int("retain_ms", &d.RetainMS)
	c.Str("service", &d.Service)
	c.Str("session", &d.Session)
	c.Int("size", &d.Size)
	c.Str("upload", &d.Upload)
}

// Used is the data of artifact_used.v1, which the session-runner records for an artifact that the
// arguments or the output of a call name, for at most 64 in each.
type Used struct {
	Artifact string `json:"artifact"`
	CallID   string `json:"call_id"`
}

// Canonical implements canon.Document.
func (d *Used) Canonical(c *canon.Codec) {
	c.Str("artifact", &d.Artifact)
	c.Str("call_id", &d.CallID)
}
