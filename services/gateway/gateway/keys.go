package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// keyPrefix begins every virtual key, so that scanners find one that leaked.
const keyPrefix = "bk-"

var keyFilters = []string{"evt.*.policy.*." + events.VirtualKeyCreatedName + ".>", "evt.*.policy.*." + events.VirtualKeyRevokedName + ".>"}

// virtualKeys is the view of keys by digest. What a key may do is policy's to
// say, call by call; here it only becomes a caller.
type virtualKeys struct {
	mu       sync.RWMutex
	byDigest map[string]*events.VirtualKeyCreated
	byID     map[string]string // digest
}

// apply folds one event in.
func (v *virtualKeys) apply(e *contract.Event) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byID == nil {
		v.byDigest, v.byID = map[string]*events.VirtualKeyCreated{}, map[string]string{}
	}
	switch e.Name {
	case events.VirtualKeyCreatedName:
		k := &events.VirtualKeyCreated{}
		if err := contract.Decode(e.Data, k); err != nil {
			return err
		}
		v.byDigest[k.Digest], v.byID[k.ID] = k, k.Digest
	case events.VirtualKeyRevokedName:
		var d events.VirtualKeyRevoked
		if err := contract.Decode(e.Data, &d); err != nil {
			return err
		}
		delete(v.byDigest, v.byID[d.ID])
	}
	return nil
}

// caller is whoever shows the key; nil where there is none.
func (v *virtualKeys) caller(raw string) *caller {
	v.mu.RLock()
	defer v.mu.RUnlock()
	k := v.byDigest[digestOf(raw)]
	if k == nil {
		return nil
	}
	return &caller{actor: k.Actor, client: contract.KeyClient + k.ID, scopes: k.Scopes, cache: k.Cache}
}

func digestOf(raw string) string {
	sum := sha256.Sum256([]byte(raw))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// KeyRequest is the body of POST /api/v1/keys.
type KeyRequest struct {
	ID           string   `json:"id"`
	Actor        string   `json:"actor"`
	Scopes       []string `json:"scopes,omitempty"` // empty = llm:call
	Models       []string `json:"models,omitempty"` // patterns; empty = every model
	Tags         []string `json:"tags,omitempty"`
	Budget       int64    `json:"budget_usd_micros,omitempty"` // 0 = not bounded
	BudgetWindow string   `json:"budget_window,omitempty"`     // day, month, total
	Rate         int64    `json:"rate_calls,omitempty"`
	RateWindow   string   `json:"rate_window,omitempty"` // second, minute, hour
	Concurrent   int64    `json:"concurrent,omitempty"`
	Cache        bool     `json:"cache,omitempty"`
	TTLMS        int64    `json:"ttl_ms,omitempty"` // 0 = for good
}

// KeyResponse shows a virtual key, this once.
type KeyResponse struct {
	ID  string `json:"id"`
	Key string `json:"key"`
}

// createKey is POST /api/v1/keys. The key is made here and shown once; the call
// that creates it holds its digest.
func (s *Service) createKey(c echo.Context) error {
	who, err := s.auth(c, token.Admin)
	if err != nil {
		return err
	}
	var req KeyRequest
	dec := json.NewDecoder(c.Request().Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return badRequest("body", "want {id, actor, scopes?, models?, tags?, …}: "+err.Error())
	}
	if !contract.Token(req.ID) || len(req.ID) > 64 {
		return badRequest("id", "want 1 to 64 of [A-Za-z0-9_-]")
	}
	if req.Actor == "" {
		return badRequest("actor", "name who will call with the key")
	}
	if len(req.Scopes) == 0 {
		req.Scopes = []string{token.LLM}
	}
	for _, sc := range req.Scopes {
		if !slices.Contains(token.All, sc) {
			return badRequest("scopes", "scope "+sc+" is unknown; known are "+strings.Join(token.All, ", "))
		}
	}
	key := keyPrefix + strings.ToLower(rand.Text()+rand.Text())
	doc, err := json.Marshal(struct {
		KeyRequest
		Digest string `json:"digest"`
	}{req, digestOf(key)})
	if err != nil {
		return err
	}
	args, err := canon.Transform(nil, doc)
	if err != nil {
		return badRequest("body", err.Error())
	}
	r, err := s.request(c, "policy.create_key", "policy.create_key", args, who)
	if err != nil {
		return err
	}
	if _, _, err := s.run(c, r); err != nil {
		return err
	}
	for end := time.Now().Add(2 * time.Second); s.keys.caller(key) == nil && time.Now().Before(end); { // it works when its maker has it
		time.Sleep(2 * time.Millisecond)
	}
	return c.JSON(http.StatusOK, KeyResponse{req.ID, key})
}

// listKeys is GET /api/v1/keys.
func (s *Service) listKeys(c echo.Context) error {
	if _, err := s.auth(c, token.Admin); err != nil {
		return err
	}
	return s.askPolicy(c, "keys", nil)
}
