package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Mesh configures access to the gateway to which the proxy proposes its calls. Client
// must not be nil.
type Mesh struct {
	URL    string // base URL without a final slash, such as http://host:port
	Token  string
	Client *http.Client
}

const sessionHeader = "X-Binnacle-Session"

// asker obtains the mesh's decisions on one client request and on the tool calls in its
// response.
type asker struct {
	mesh           Mesh
	session, trace string

	mu       sync.Mutex
	receipts []string // receipt ids of the decided tool calls
}

// verdict describes whether a call is allowed, and if it is not, the error for the
// client.
type verdict struct {
	Allowed             bool
	Status              int
	Code, Message       string
	CallID, ReceiptID   string
	Verdict, RetryAfter string
	body                []byte
}

// undecided returns the refusal of a call that the mesh could not decide. The client
// may retry after two seconds.
func undecided(format string, args ...any) *verdict {
	return &verdict{Status: http.StatusServiceUnavailable, Code: contract.CodeMeshUnavailable, Message: fmt.Sprintf(format, args...), RetryAfter: "2"}
}

// decide proposes a call and waits for the mesh's response. The verdict is a refusal
// unless the response allows the call, for example if the call waits for approval, has
// no outcome after the time that the mesh waits, or the mesh is unreachable.
func (a *asker) decide(ctx context.Context, kind string, args any) *verdict {
	body, err := json.Marshal(map[string]any{"kind": kind, "tool": kind, "args": args})
	if err != nil {
		return undecided("the arguments are not JSON")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.mesh.URL+"/api/v1/calls", bytes.NewReader(body))
	if err != nil {
		return undecided("the mesh's address cannot be used")
	}
	req.Header = http.Header{"Authorization": {"Bearer " + a.mesh.Token}, "Content-Type": {"application/json"}, sessionHeader: {a.session}, "Prefer": {"respond-async"}}
	if a.trace != "" {
		req.Header.Set("Traceparent", a.trace)
	}
	resp, err := a.mesh.Client.Do(req)
	if err != nil {
		return undecided("the mesh is unreachable; nothing was forwarded")
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return undecided("the mesh's answer was cut off")
	}
	v := &verdict{Status: resp.StatusCode, body: raw, CallID: resp.Header.Get("X-Binnacle-Call-Id"), ReceiptID: resp.Header.Get("X-Binnacle-Receipt-Id"),
		Verdict: resp.Header.Get("X-Binnacle-Verdict"), RetryAfter: resp.Header.Get("Retry-After")}
	switch resp.StatusCode {
	case http.StatusOK:
		v.Allowed = v.Verdict == "ALLOW" && v.ReceiptID != ""
		if !v.Allowed {
			return undecided("the response from the mesh's address has no verdict ALLOW with a receipt; check that the address is a mesh's")
		}
		return v
	case http.StatusAccepted:
		var doc struct{ Status string }
		if json.Unmarshal(raw, &doc) != nil || doc.Status != "pending_approval" {
			return undecided("call %s has no outcome yet; send the request again", v.CallID)
		}
		v.Status, v.Code, v.body = http.StatusForbidden, contract.CodeApprovalRequired, nil
		v.Message = "waits for approval as call " + v.CallID + "; send it again once it is granted"
		return v
	}
	var doc struct {
		Error struct{ Message, Code string }
	}
	if json.Unmarshal(raw, &doc) != nil || doc.Error.Message == "" {
		return undecided("the mesh answered %s", resp.Status)
	}
	v.Code, v.Message = doc.Error.Code, doc.Error.Message
	return v
}

// write sends the refusal as the response to a client whose request is not forwarded.
func (v *verdict) write(w http.ResponseWriter) {
	if v.RetryAfter != "" {
		w.Header().Set("Retry-After", v.RetryAfter)
	}
	if v.body == nil {
		kind := "permission_error"
		if v.Status >= 500 {
			kind = "server_error"
		}
		refuse(w, &problem{v.Status, kind, v.Code, v.Message})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(v.Status)
	_, _ = w.Write(v.body)
}

// headers sets the response headers with the session, call, receipt and verdict of the
// decision on the request.
func (v *verdict) headers(h http.Header, session string) {
	h.Set(sessionHeader, session)
	for k, val := range map[string]string{"X-Binnacle-Call-Id": v.CallID, "X-Binnacle-Receipt-Id": v.ReceiptID, "X-Binnacle-Verdict": v.Verdict} {
		if val != "" {
			h.Set(k, val)
		}
	}
}

// headers sets the header with the receipt ids of the tool calls that were decided
// before the response began, if there are any.
func (a *asker) headers(h http.Header) {
	if len(a.receipts) > 0 {
		h.Set("X-Binnacle-Tool-Receipts", strings.Join(a.receipts, ", "))
	}
}
