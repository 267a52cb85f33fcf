package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// governed proposes a call of a policy kind and returns its output.
func (c *env) governed(ctx context.Context, kind string, args any) (json.RawMessage, error) {
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/calls", map[string]any{"kind": kind, "tool": kind, "args": args}, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return outputOf(resp.Body)
}

// outputOf reads the response to a call.
func outputOf(body io.Reader) (json.RawMessage, error) {
	var doc struct {
		Output json.RawMessage `json:"output"`
		Status string          `json:"status"`
		CallID string          `json:"call_id"`
	}
	if err := json.NewDecoder(body).Decode(&doc); err != nil {
		return nil, err
	}
	if doc.Status == "pending_approval" {
		return nil, fail(exitPending, "call %s waits for approval; `binnacle approvals list` shows it", doc.CallID)
	}
	return doc.Output, nil
}

// sayCall prints the output in the response to a call.
func (c *env) sayCall(body io.Reader) error { return c.say(outputOf(body)) }

// say prints a governed call's output.
func (c *env) say(out json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	return c.print(out, func() { fmt.Fprintln(c.out, indent(out)) })
}

func (c *env) verb(verbs string) (string, []string, error) {
	pos, err := c.parse(1, -1, verbs)
	if err != nil {
		return "", nil, err
	}
	return pos[0], pos[1:], nil
}

func (c *env) want(rest []string, n int, usage string) error {
	if len(rest) != n {
		return fail(exitUsage, "usage: %s %s", c.fs.Name(), usage)
	}
	return nil
}

func freeze(ctx context.Context, c *env) error {
	reason := c.fs.String("reason", "", "why")
	if _, err := c.parse(0, 0, "--reason WHY"); err != nil {
		return err
	}
	out, err := c.governed(ctx, "policy.freeze", map[string]string{"reason": *reason})
	if err != nil {
		return err
	}
	var doc struct {
		Acked   []string `json:"acknowledged"`
		Missing []string `json:"missing"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return err
	}
	if err := c.print(out, func() { fmt.Fprintf(c.out, "frozen; acknowledged by %s\n", strings.Join(doc.Acked, ", ")) }); err != nil {
		return err
	}
	if len(doc.Missing) > 0 {
		return fail(exitFailed, "not acknowledged by %s", strings.Join(doc.Missing, ", "))
	}
	return nil
}

func unfreeze(ctx context.Context, c *env) error {
	reason := c.fs.String("reason", "", "why")
	if _, err := c.parse(0, 0, "--reason WHY"); err != nil {
		return err
	}
	return c.say(c.governed(ctx, "policy.unfreeze", map[string]string{"reason": *reason}))
}

// waiting is a call that waits for approval.
type waiting struct {
	CallID  string                  `json:"call_id"`
	Kind    string                  `json:"kind"`
	Actor   string                  `json:"actor"`
	Tenant  string                  `json:"tenant"`
	Reason  string                  `json:"reason_code"`
	Since   string                  `json:"since"`
	Expires string                  `json:"expires"`
	Rules   []contract.ApprovalRule `json:"rules"`
	Votes   []contract.Approval     `json:"votes"`
	Args    json.RawMessage         `json:"args,omitempty"`
	Digest  string                  `json:"decision_digest"`
}

func approvals(ctx context.Context, c *env) error {
	reason := c.fs.String("reason", "", "why, for grant and deny")
	key := c.fs.String("key", "", "file of the approver's own key, 32 bytes in hex: sign the ballot with it")
	as := c.fs.String("as", "", "approver the key belongs to, with --key")
	verb, rest, err := c.verb("list | show CALL | grant CALL --reason WHY | deny CALL --reason WHY")
	if err != nil {
		return err
	}
	switch verb {
	case "list":
		var all []json.RawMessage
		if err := c.get(ctx, "/api/v1/approvals", &all); err != nil {
			return err
		}
		return c.print(all, func() {
			for _, raw := range all {
				var w waiting
				if json.Unmarshal(raw, &w) == nil {
					fmt.Fprintf(c.out, "%s  %-24s by %-16s %-28s until %s, %d votes\n", w.CallID, w.Kind, w.Actor, w.Reason, w.Expires, len(w.Votes))
				}
			}
		})
	case "show":
		if err := c.want(rest, 1, "show CALL"); err != nil {
			return err
		}
		var raw json.RawMessage
		if err := c.get(ctx, "/api/v1/approvals/"+url.PathEscape(rest[0]), &raw); err != nil {
			return err
		}
		return c.print(raw, func() { fmt.Fprintln(c.out, indent(raw)) })
	case "grant", "deny":
		if err := c.want(rest, 1, verb+" CALL --reason WHY"); err != nil {
			return err
		}
		body := map[string]string{"vote": verb, "reason": *reason}
		if *key != "" {
			if err := c.ballot(ctx, rest[0], *key, *as, body); err != nil {
				return err
			}
		}
		resp, err := c.request(ctx, http.MethodPost, "/api/v1/approvals/"+url.PathEscape(rest[0])+"/votes", body, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var doc struct {
			Output json.RawMessage `json:"output"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
			return err
		}
		return c.say(doc.Output, nil)
	}
	return fail(exitUsage, "usage: binnacle approvals list|show|grant|deny")
}

// ballot signs the vote with the approver's own key, which never leaves this
// machine.
func (c *env) ballot(ctx context.Context, call, file, as string, body map[string]string) error {
	seed, err := keyring.ReadSeed(file)
	if err != nil {
		return err
	}
	if as == "" {
		return fail(exitUsage, "--key wants --as: whose key it is")
	}
	k, err := sign.NewKey(seed)
	if err != nil {
		return err
	}
	var w waiting
	if err := c.get(ctx, "/api/v1/approvals/"+url.PathEscape(call), &w); err != nil {
		return err
	}
	b := contract.Ballot{Approver: as, CallID: call, DecisionDigest: w.Digest, KID: k.KID, Reason: body["reason"], Tenant: w.Tenant, Vote: body["vote"]}
	body["kid"], body["sig"] = k.KID, k.Sign(sign.DomainApproval, contract.Bytes(&b))
	return nil
}

// identities is what GET /api/v1/identities answers.
type identities struct {
	Identities []struct {
		Kind      string   `json:"kind"`
		ID        string   `json:"id"`
		Principal string   `json:"principal"`
		Role      string   `json:"role"`
		Delegate  string   `json:"delegate"`
		Kinds     []string `json:"kinds"`
		Expires   string   `json:"expires"`
		From      uint64   `json:"from_lamport"`
		To        uint64   `json:"to_lamport"`
		Type      string   `json:"type"`
		Suspended bool     `json:"suspended"`
	} `json:"identities"`
	BreakGlass []json.RawMessage `json:"break_glass"`
	Frozen     string            `json:"frozen"`
}

// listIdentities prints those of a kind, all of history or, with at, as they
// stood at a lamport.
func (c *env) listIdentities(ctx context.Context, kind, at string) error {
	var doc identities
	path := "/api/v1/identities"
	if at != "" {
		path += "?at=" + url.QueryEscape(at)
	}
	if err := c.get(ctx, path, &doc); err != nil {
		return err
	}
	return c.print(doc, func() {
		for _, i := range doc.Identities {
			if i.Kind != kind {
				continue
			}
			end := ""
			if i.To > 0 {
				end = fmt.Sprintf(", ended at lamport %d", i.To)
			}
			if i.Expires != "" {
				end += ", expires " + i.Expires
			}
			switch kind {
			case "principal":
				if i.Suspended {
					end = ", suspended" + end
				}
				fmt.Fprintf(c.out, "%-20s %-16s since lamport %d%s\n", i.Principal, i.Type, i.From, end)
			case "role":
				fmt.Fprintf(c.out, "%-20s %-16s since lamport %d%s\n", i.Principal, i.Role, i.From, end)
			case "session":
				fmt.Fprintf(c.out, "%s  %s for %s, since lamport %d%s\n", i.ID, i.Delegate, i.Principal, i.From, end)
			default:
				fmt.Fprintf(c.out, "%s  %s for %s: %s, since lamport %d%s\n", i.ID, i.Delegate, i.Principal, strings.Join(i.Kinds, " "), i.From, end)
			}
		}
	})
}

func principals(ctx context.Context, c *env) error {
	reason := c.fs.String("reason", "", "why, for suspend and resume")
	at := c.fs.String("at", "", "lamport, for list")
	verb, rest, err := c.verb("list [--at LAMPORT] | register WHO person|agent|service | suspend WHO --reason WHY | resume WHO --reason WHY")
	if err != nil {
		return err
	}
	switch {
	case verb == "list" && len(rest) == 0:
		return c.listIdentities(ctx, "principal", *at)
	case verb == "register" && len(rest) == 2:
		return c.say(c.governed(ctx, "policy.register_principal", map[string]string{"principal": rest[0], "type": rest[1]}))
	case (verb == "suspend" || verb == "resume") && len(rest) == 1:
		return c.say(c.governed(ctx, "policy."+verb+"_principal", map[string]string{"principal": rest[0], "reason": *reason}))
	}
	return fail(exitUsage, "usage: binnacle principals list | register WHO TYPE | suspend WHO | resume WHO")
}

func roles(ctx context.Context, c *env) error {
	at := c.fs.String("at", "", "lamport, for list")
	ttl := c.fs.Duration("ttl", 0, "how long, for grant; 0 = for good")
	verb, rest, err := c.verb("list | grant WHO ROLE [--ttl D] | revoke WHO ROLE")
	if err != nil {
		return err
	}
	switch verb {
	case "list":
		return c.listIdentities(ctx, "role", *at)
	case "grant", "revoke":
		if err := c.want(rest, 2, verb+" WHO ROLE"); err != nil {
			return err
		}
		args := map[string]any{"principal": rest[0], "role": rest[1]}
		if *ttl > 0 {
			args["ttl_ms"] = ttl.Milliseconds()
		}
		return c.say(c.governed(ctx, "policy."+verb+"_role", args))
	}
	return fail(exitUsage, "usage: binnacle roles list|grant|revoke")
}

func delegations(ctx context.Context, c *env) error {
	at := c.fs.String("at", "", "lamport, for list")
	ttl := c.fs.Duration("ttl", 24*time.Hour, "how long, for grant")
	verb, rest, err := c.verb("list | grant DELEGATE KIND… [--ttl D] | revoke ID")
	if err != nil {
		return err
	}
	switch {
	case verb == "list":
		return c.listIdentities(ctx, "delegation", *at)
	case verb == "grant" && len(rest) >= 2:
		return c.say(c.governed(ctx, "policy.delegate", map[string]any{"delegate": rest[0], "kinds": rest[1:], "ttl_ms": ttl.Milliseconds()}))
	case verb == "revoke" && len(rest) == 1:
		return c.say(c.governed(ctx, "policy.revoke_delegation", map[string]string{"id": rest[0]}))
	}
	return fail(exitUsage, "usage: binnacle delegations list | grant DELEGATE KIND… | revoke ID")
}

func breakGlass(ctx context.Context, c *env) error {
	reason := c.fs.String("reason", "", "why")
	ttl := c.fs.Duration("ttl", 15*time.Minute, "how long, for open")
	verdict := c.fs.String("verdict", "justified", "justified or misused, for review")
	verb, rest, err := c.verb("open --reason WHY [--ttl D] | review ID --reason WHY --verdict V | list")
	if err != nil {
		return err
	}
	switch {
	case verb == "open" && len(rest) == 0:
		return c.say(c.governed(ctx, "policy.break_glass", map[string]any{"reason": *reason, "ttl_ms": ttl.Milliseconds()}))
	case verb == "review" && len(rest) == 1:
		return c.say(c.governed(ctx, "policy.review", map[string]string{"id": rest[0], "reason": *reason, "verdict": *verdict}))
	case verb == "list" && len(rest) == 0:
		var doc identities
		if err := c.get(ctx, "/api/v1/identities", &doc); err != nil {
			return err
		}
		return c.print(doc.BreakGlass, func() {
			for _, g := range doc.BreakGlass {
				fmt.Fprintln(c.out, string(g))
			}
		})
	}
	return fail(exitUsage, "usage: binnacle break-glass open|review|list")
}
