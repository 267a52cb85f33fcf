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
	"io"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	queries "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// artifactsMember is the member of a pack's input that contains the content of the artifacts that
// the arguments name, in base64 by argument. Calls of a pack whose manifest has artifact_inputs must
// not have an argument of this name, in upper or lower case.
const artifactsMember = "_artifacts"

// attach returns stdin, the document for the pack's standard input, with the member artifactsMember:
// the content of the artifacts whose ids are the arguments that artifact_inputs lists. It returns
// stdin itself if the call has none of these arguments. The digest of the arguments covers the ids,
// which are digests of the content. If an artifact is not the caller's, is larger than the manifest
// permits or cannot be read, the result has an error code.
func attach(ctx context.Context, env *run.Env, w *execute.Work, p *pack.Pack, stdin []byte) ([]byte, execute.Result) {
	if len(p.Inputs) == 0 {
		return stdin, execute.Result{}
	}
	var args map[string]json.RawMessage
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return nil, execute.Fail(contract.CodeInvalidInput, "the arguments are not one JSON object: %v", err)
	}
	for name := range args {
		if strings.EqualFold(name, artifactsMember) {
			return nil, execute.Fail(contract.CodeInvalidInput, "arguments: the member %s is reserved for the content of artifacts: remove it", name)
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `{"%s":{`, artifactsMember)
	empty := out.Len()
	for _, in := range p.Inputs {
		raw, given := args[in.Member]
		if !given {
			continue
		}
		var id string
		_ = json.Unmarshal(raw, &id) // if it is no string, id is no id
		if out.Len() > empty {
			out.WriteByte(',')
		}
		name, err := json.Marshal(in.Member)
		if err != nil {
			return nil, execute.Fail(contract.CodeInternal, "%v", err)
		}
		out.Write(name)
		out.WriteString(`:"`)
		enc := base64.NewEncoder(base64.StdEncoding, &out)
		if res := content(ctx, env, inputReader{w.Event.Tenant, w.Event.Actor, w.Call.KeyID()}, in, id, enc); res.ErrorCode != "" {
			return nil, res
		}
		if err := enc.Close(); err != nil {
			return nil, execute.Fail(contract.CodeInternal, "%v", err)
		}
		out.WriteByte('"')
	}
	if out.Len() == empty {
		return stdin, execute.Result{}
	}
	out.WriteString("},")
	out.Write(bytes.TrimSpace(stdin)[1:]) // it has at least the member of the last artifact
	return out.Bytes(), execute.Result{}
}

// inputReader is the call that reads an artifact: its tenant and actor, and the content key of its
// contents, or "".
type inputReader struct{ tenant, actor, key string }

// content writes the content of an artifact of the caller to out, and compares it with the digest in
// the id.
func content(ctx context.Context, env *run.Env, by inputReader, in pack.Input, id string, out io.Writer) execute.Result {
	tenant, owner := by.tenant, by.actor
	digest := artifact.DigestOf(id)
	if digest == "" {
		return execute.Fail(contract.CodeInvalidInput, "%s: want the id of an artifact, ar- and 64 hex digits", in.Member)
	}
	found, err := rpc.Do(ctx, env.Queries.In(tenant), queries.ArtifactInfoQuery, queries.ArtifactInfoRequest{Artifact: id, Owner: owner})
	switch {
	case rpc.CodeOf(err) == contract.CodeNotFound:
		return execute.Fail(contract.CodeInvalidInput, "%s: no artifact of the caller has this id", in.Member)
	case err != nil:
		return execute.Fail(contract.CodeArtifactFailed, "%s: the artifact cannot be found now: %v", in.Member, err)
	}
	a := found.Value
	if a.Size > in.MaxBytes {
		return execute.Fail(contract.CodeInvalidInput, "%s: the artifact has %d bytes, and the pack accepts %d", in.Member, a.Size, in.MaxBytes)
	}
	if !contentkeys.Covers(by.key, artifact.KeyOf(a.Upload)) {
		return execute.Fail(contract.CodeInvalidInput, "%s: %v", in.Member, contentkeys.ErrOtherSubject)
	}
	o := artifact.Object{Tenant: tenant, Service: a.Service, Upload: a.Upload, Size: a.Size, Digest: digest, Index: a.Index}
	sum := sha256.New()
	if err := copyContent(ctx, env, owner, id, o, io.MultiWriter(sum, out)); err != nil {
		return execute.Fail(contract.CodeArtifactFailed, "%s: the artifact cannot be read: %v", in.Member, err)
	}
	if "sha256:"+hex.EncodeToString(sum.Sum(nil)) != o.Digest {
		return execute.Fail(contract.CodeArtifactFailed, "%s: %v", in.Member, artifact.ErrCorrupt)
	}
	return execute.Result{}
}

// files returns the stream ARTIFACTS as a store of artifacts.
func files(env *run.Env) artifact.Store {
	return artifact.Sealed{Collected: artifact.Stream{Conn: env.Conn}, Keys: env.Blobs.Keys}
}

// copyContent writes the content of an artifact to w. If it is not in the stream ARTIFACTS but in
// S3, for which the session-runner has no credentials, work reads it.
func copyContent(ctx context.Context, env *run.Env, owner, id string, o artifact.Object, w io.Writer) error {
	r, err := artifact.Open(ctx, files(env), o)
	if err == nil {
		defer r.Close()
		_, err = io.Copy(w, r)
		return err
	}
	if !errors.Is(err, artifact.ErrNotFound) {
		return err
	}
	for at := int64(0); at < o.Size; {
		part, err := rpc.Do(ctx, env.Queries.In(o.Tenant), queries.ArtifactPartQuery, queries.ArtifactPartRequest{Allowed: int64(contentkeys.CallOf(ctx)), Artifact: id, Offset: at, Owner: owner, Upload: o.Upload})
		if err != nil {
			return err
		}
		if len(part.Value) == 0 {
			return io.ErrUnexpectedEOF
		}
		if _, err := w.Write(part.Value); err != nil {
			return err
		}
		at += int64(len(part.Value))
	}
	return nil
}

// attach sets the standard input or the content of a call for a held sandbox to the content of the
// artifact that its arguments name in place of it, if they name one.
func (c *heldCall) attach(ctx context.Context, env *run.Env) execute.Result {
	a := &c.args
	for _, from := range []struct {
		member, id string
		given      bool // the call has the argument that the artifact would replace
		set        func(string)
	}{
		{"stdin_artifact", a.StdinFrom, a.Stdin != "", func(s string) { a.Stdin = s }},
		{"content_artifact", a.From, a.Content != nil, func(s string) { a.Content = &s }},
	} {
		if from.id == "" {
			continue
		}
		if from.given || a.Base64 {
			return execute.Fail(contract.CodeInvalidInput, "%s: give it without %s and base64", from.member, strings.TrimSuffix(from.member, "_artifact"))
		}
		var out strings.Builder
		if res := content(ctx, env, inputReader{c.tenant, c.actor, c.key}, pack.Input{Member: from.member, MaxBytes: pack.MaxInputBytes}, from.id, &out); res.ErrorCode != "" {
			return res
		}
		from.set(out.String())
	}
	return execute.Result{}
}

// content returns what a call writes to a file.
func (c *heldCall) content() ([]byte, execute.Result) {
	switch {
	case c.args.Content == nil:
		return nil, execute.Fail(contract.CodeInvalidInput, "content: give either content or content_artifact")
	case !c.args.Base64:
		return []byte(*c.args.Content), execute.Result{}
	}
	data, err := base64.StdEncoding.DecodeString(*c.args.Content)
	if err != nil {
		return nil, execute.Fail(contract.CodeInvalidInput, "content: %v", err)
	}
	return data, execute.Result{}
}
