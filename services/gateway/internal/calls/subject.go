package calls

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

// SubjectHeader is the request header with the name of the data subject that the contents of
// a call are about. They are encrypted under keys of the subject, so that they can be erased
// without those of others. The name itself is not recorded. A request with the header is
// refused (400) if the contents of the call are not encrypted.
const SubjectHeader = "X-Binnacle-Subject"

// subjectArg is the argument of contentkeys.KindEraseSubject that SubjectHeader sets.
const subjectArg = "subject"

// encrypts reports whether the contents of a call are encrypted in the capture mode encrypted:
// those of requests to models, judgements, calls of tools, and calls that their callers execute.
// The actions of coding agents are encrypted only if they are about a data subject, since files of
// pull requests are attested from the arguments on the ledger. Calls that change the mesh are not
// encrypted: their arguments must stay readable.
func (s *Maker) encrypts(r *propose.Request, subject string) bool {
	switch {
	case r.ReportWithin > 0:
		return subject != "" || !strings.HasPrefix(r.Kind, clientkind.Prefix)
	case slices.Contains(llm.Kinds, r.Kind):
		return true
	}
	family, _, _ := strings.Cut(r.Kind, ".")
	return slices.Contains([]string{"tool", "resource", "prompt", "completion", services.Judge}, family) &&
		slices.Contains([]string{services.SessionRunner, services.MCPRouter, services.Work, services.Judge}, s.ExecutorOf(r.Kind))
}

// encrypted sets Encrypt and Key of a proposal. The args of a request to a model, a summary
// without content, are not encrypted.
func (s *Maker) encrypted(h http.Header, r *propose.Request) error {
	subject := h.Get(SubjectHeader)
	on := s.Capture != nil && s.Capture() == llm.CaptureEncrypted && s.encrypts(r, subject)
	r.Encrypt = on && !slices.Contains(llm.Kinds, r.Kind)
	switch {
	case subject == "" || r.Kind == contentkeys.KindEraseSubject:
		return nil
	case !on:
		return apierr.BadRequest(SubjectHeader, "the contents of this call are not encrypted, so they could not be erased: it needs the capture mode encrypted, and must be a request to a model, a judgement, a call of a tool, or a call that its caller executes")
	}
	r.Key.Subject = subject
	return body.CheckName(SubjectHeader, subject)
}

// named returns the args of a call that erases a data subject with the pseudonym of the
// subject that SubjectHeader names, and the args of any other call unchanged.
func (s *Maker) named(ctx context.Context, h http.Header, who *auth.Caller, kind string, args []byte) ([]byte, error) {
	subject := h.Get(SubjectHeader)
	if subject == "" || kind != contentkeys.KindEraseSubject {
		return args, nil
	}
	if err := body.CheckName(SubjectHeader, subject); err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(args, &members); err != nil || members == nil {
		return nil, apierr.BadRequest(SubjectHeader, "the arguments are not one JSON object")
	}
	pseudonym, err := s.Pseudonym(ctx, who.Tenant, subject)
	if err != nil {
		return nil, apierr.Unavailable("the pseudonym of the data subject cannot be read now: " + err.Error())
	}
	return withMember(SubjectHeader, members, subjectArg, pseudonym)
}
