package sessionrunner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	usage "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// made is the content of an artifact in the output of a program. Its name is numbered if it is an
// item of a list.
type made struct {
	pack.Artifact
	content []byte
}

// sum returns the SHA-256 of the content in hex.
func (m *made) sum() string {
	sum := sha256.Sum256(m.content)
	return hex.EncodeToString(sum[:])
}

// contents returns the members of an output, and the contents of those that are to be
// artifacts, without members that are absent, empty or null. It returns an error if the output
// is not an object, or if such a member is not a string, or not base64 although it must be. A
// list must be an array of at most pack.MaxListed such strings, of which none is empty.
func contents(output []byte, artifacts []pack.Artifact) (members map[string]json.RawMessage, all []made, err error) {
	if err := json.Unmarshal(output, &members); err != nil {
		return nil, nil, err
	}
	if members == nil {
		return nil, nil, errors.New("the output, whose members are to be artifacts, is null")
	}
	for _, a := range artifacts {
		raw, ok := members[a.Member]
		if !ok {
			continue
		}
		items, err := texts(raw, a.List)
		if err != nil {
			return nil, nil, fmt.Errorf("member %s, which is to be an artifact, %w", a.Member, err)
		}
		for i, text := range items {
			m := made{a, []byte(text)}
			if a.List {
				m.Name = a.Numbered(i)
			}
			if a.Base64 {
				if m.content, err = base64.StdEncoding.DecodeString(text); err != nil {
					return nil, nil, fmt.Errorf("member %s, which is to be an artifact, is not base64: %w", a.Member, err)
				}
			}
			switch {
			case len(m.content) > 0:
				all = append(all, m)
			case a.List: // base64 of line ends only
				return nil, nil, fmt.Errorf("member %s, which is to be an artifact, has an empty item", a.Member)
			}
		}
	}
	return members, all, nil
}

// texts returns the strings of a member: the items of a list, or the member itself. The text of
// its errors continues a sentence that begins with the name of the member.
func texts(raw json.RawMessage, list bool) ([]string, error) {
	if !list {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return nil, errors.New("is not a string")
		}
		return []string{text}, nil
	}
	var items []string
	switch err := json.Unmarshal(raw, &items); {
	case err != nil:
		return nil, errors.New("is not an array of strings")
	case len(items) > pack.MaxListed:
		return nil, fmt.Errorf("has more than %d items", pack.MaxListed)
	case slices.Contains(items, ""):
		return nil, errors.New("has an empty item")
	}
	return items, nil
}

// keep stores the members of a successful result that the manifest names as artifacts, and puts
// their ids in the place of their content. The artifacts belong to the caller and count in the
// quota of its tenant; their inputs are the artifacts that the arguments name. If the output with
// the ids violates the output schema, the result is a failure and nothing is stored. If an artifact
// cannot be stored, the result is a failure; those stored before remain.
func (s *Service) keep(ctx context.Context, w *execute.Work, p *pack.Pack, res execute.Result) execute.Result {
	if len(p.Artifacts) == 0 || res.ErrorCode != "" || res.Output == nil {
		return res
	}
	members, all, err := contents(res.Output, p.Artifacts)
	if err != nil {
		return execute.Fail(contract.CodeInvalidOutput, "the output: %v", err)
	}
	if len(all) == 0 {
		return res
	}
	output, err := named(members, all)
	if err != nil {
		return execute.Fail(contract.CodeInternal, "the output with the ids of its artifacts: %v", err)
	}
	if err := s.schemas.Output(p.Digest, &p.Tool, output); err != nil {
		return execute.Fail(contract.CodeInvalidOutput, "the output %v", err)
	}
	if err := s.fits(ctx, w, all); err != nil {
		return failedArtifact(err)
	}
	stored := map[string]bool{} // a list may have the same content twice
	for _, m := range all {
		key := m.Member + "/" + m.sum()
		if stored[key] {
			continue
		}
		stored[key] = true
		digest, err := s.store(ctx, w, m)
		if err != nil {
			return failedArtifact(err)
		}
		res.Artifacts = append(res.Artifacts, digest)
	}
	res.Output = output
	return res
}

// named returns the canonical output with the ids of artifacts in the place of their content. It
// changes members.
func named(members map[string]json.RawMessage, all []made) ([]byte, error) {
	lists := map[string][]string{}
	for _, m := range all {
		id := artifact.ID("sha256:" + m.sum())
		if !m.List {
			members[m.Member] = json.RawMessage(`"` + id + `"`)
			continue
		}
		lists[m.Member] = append(lists[m.Member], id)
		members[m.Member] = json.RawMessage(`["` + strings.Join(lists[m.Member], `","`) + `"]`)
	}
	raw, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	return canon.Transform(nil, raw)
}

// errQuota is the error of an artifact that exceeds the quota of its tenant.
var errQuota = errors.New("the quota of the tenant")

// fits returns an error that wraps errQuota if the tenant has no room for artifacts. Concurrent
// calls may exceed the quota together, because none counts the artifacts that others store later.
func (s *Service) fits(ctx context.Context, w *execute.Work, all []made) error {
	used, err := rpc.Do(ctx, s.env.Queries.In(w.Event.Tenant), usage.ArtifactUsageQuery, usage.ArtifactUsageRequest{})
	if err != nil {
		return err
	}
	var size int64
	for _, m := range all {
		size += int64(len(m.content))
	}
	if room := used.Value.Quota - used.Value.Used; size > room {
		return fmt.Errorf("artifacts of %d bytes exceed %w, which has %d bytes left: delete some", size, errQuota, max(room, 0))
	}
	return nil
}

// store stores one artifact and records it, and returns the digest of its content. The id of the
// upload depends on the call, the member and the content, so a call that runs again does not
// store the same content twice.
func (s *Service) store(ctx context.Context, w *execute.Work, m made) (string, error) {
	upload := artifact.InlineUpload(w.Event.Tenant, w.Event.Session, w.Call.ID+"/"+m.Member+"/"+m.sum(), w.Call.KeyID())
	o, err := artifact.WriteAs(ctx, files(s.env), w.Event.Tenant, services.SessionRunner, upload, int64(len(m.content)), bytes.NewReader(m.content))
	if err != nil {
		return "", err
	}
	d := artifact.Stored{Actor: w.Event.Actor, Artifact: artifact.ID(o.Digest), CallID: w.Call.ID, Index: o.Index, Inputs: artifact.Named(w.Args, maxCited), Kind: w.Call.Kind, MediaType: m.MediaType, Name: m.Name,
		Service: services.SessionRunner, Session: w.Event.Session, Size: o.Size, Upload: o.Upload}
	_, err = s.env.Emit.Append(ctx, s.env.Emit.New(contract.EventArtifactStored, d.Artifact, contract.Bytes(&d), w.Event))
	return o.Digest, err
}

// failedArtifact returns the result of a call whose artifact could not be stored.
func failedArtifact(err error) execute.Result {
	if errors.Is(err, errQuota) || errors.Is(err, artifact.ErrFull) {
		return execute.Fail(contract.CodeResourceExhausted, "%v", err)
	}
	return execute.Fail(contract.CodeArtifactFailed, "the artifact cannot be stored: %v", err)
}
