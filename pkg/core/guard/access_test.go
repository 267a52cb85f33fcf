package guard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// entry returns an entry for every caller and secret, to which change is applied unless it is
// nil.
func entry(id string, change func(*contract.SecretEntry)) contract.SecretEntry {
	e := contract.SecretEntry{ID: id, Secret: "*", Subject: "*", Client: "*", Tool: "*"}
	if change != nil {
		change(&e)
	}
	return e
}

const (
	noon    = "2026-01-01T12:00:00.000Z"
	earlier = "2026-01-01T11:59:59.999Z"
	later   = "2026-01-01T12:00:00.001Z"
)

// TestSecretEntries checks the result of SecretEntries for a list with one entry, with different
// members of the entry and different uses.
func TestSecretEntries(t *testing.T) {
	credential := &contract.EgressCredential{Secret: "token", Header: "Authorization"}
	rule := func(host string, methods, paths []string) contract.EgressRule {
		return contract.EgressRule{Host: host, Mode: contract.EgressTerminate, Methods: methods, Paths: paths, Credential: credential}
	}
	get := rule("api.crm.example", []string{"GET"}, []string{"/v1/items/*"})
	all := rule("api.crm.example", nil, nil)
	value := guard.SecretUse{Secret: "token"}
	for what, c := range map[string]struct {
		list func(e *contract.SecretEntry)
		use  guard.SecretUse
		want string
	}{
		"every caller":                        {nil, value, "allowed e"},
		"the caller":                          {func(e *contract.SecretEntry) { e.Subject = "agent-1" }, value, "allowed e"},
		"callers with the prefix":             {func(e *contract.SecretEntry) { e.Subject = "agent-*" }, value, "allowed e"},
		"another caller":                      {func(e *contract.SecretEntry) { e.Subject = "agent-2" }, value, "no_match"},
		"a caller that has the name within":   {func(e *contract.SecretEntry) { e.Subject = "gent-1" }, value, "no_match"},
		"the client":                          {func(e *contract.SecretEntry) { e.Client = "cli" }, value, "allowed e"},
		"another client":                      {func(e *contract.SecretEntry) { e.Client = "sdk" }, value, "no_match"},
		"the tool":                            {func(e *contract.SecretEntry) { e.Tool = "crm.*" }, value, "allowed e"},
		"another tool":                        {func(e *contract.SecretEntry) { e.Tool = "crm" }, value, "no_match"},
		"another secret":                      {func(e *contract.SecretEntry) { e.Secret = "tok" }, value, "no_match"},
		"secrets with the prefix":             {func(e *contract.SecretEntry) { e.Secret = "tok*" }, value, "allowed e"},
		"the version before":                  {func(e *contract.SecretEntry) { e.Secret = "token" }, guard.SecretUse{Secret: "token.previous"}, "allowed e"},
		"not the newest by the one before":    {func(e *contract.SecretEntry) { e.Secret = "token.previous" }, value, "no_match"},
		"the version before, by a prefix":     {func(e *contract.SecretEntry) { e.Secret = "tok*" }, guard.SecretUse{Secret: "token.previous"}, "allowed e"},
		"not by a prefix of other secrets":    {func(e *contract.SecretEntry) { e.Secret = "token.*" }, guard.SecretUse{Secret: "token.previous"}, "no_match"},
		"until later":                         {func(e *contract.SecretEntry) { e.Expires = later }, value, "allowed e"},
		"until now":                           {func(e *contract.SecretEntry) { e.Expires = noon }, value, "expired"},
		"until earlier, of another caller":    {func(e *contract.SecretEntry) { e.Expires, e.Subject = earlier, "x" }, value, "no_match"},
		"host, for a value":                   {func(e *contract.SecretEntry) { e.Host = "*" }, value, "denied"},
		"host, for a value with it":           {func(e *contract.SecretEntry) { e.Host = "*.crm.example" }, guard.SecretUse{Secret: "token", Hosts: []string{"api.crm.example"}}, "allowed e"},
		"host, for a value with another":      {func(e *contract.SecretEntry) { e.Host = "*.crm.example" }, guard.SecretUse{Secret: "token", Hosts: []string{"api.crm.example", "crm.example"}}, "denied"},
		"method, for a value":                 {func(e *contract.SecretEntry) { e.Methods = []string{"GET"} }, guard.SecretUse{Secret: "token", Hosts: []string{"api.crm.example"}}, "denied"},
		"host of the requests":                {func(e *contract.SecretEntry) { e.Host = "api.crm.example" }, guard.SecretUse{Secret: "token", Rules: []contract.EgressRule{get}}, "allowed e"},
		"another host":                        {func(e *contract.SecretEntry) { e.Host = "crm.example" }, guard.SecretUse{Secret: "token", Rules: []contract.EgressRule{get}}, "denied"},
		"subdomains, for requests to more":    {func(e *contract.SecretEntry) { e.Host = "*.a.crm.example" }, guard.SecretUse{Secret: "token", Rules: []contract.EgressRule{rule("*.crm.example", nil, nil)}}, "denied"},
		"method and path of the requests":     {func(e *contract.SecretEntry) { e.Methods, e.Paths = []string{"GET", "HEAD"}, []string{"/v1/**"} }, guard.SecretUse{Secret: "token", Rules: []contract.EgressRule{get}}, "allowed e"},
		"method, for requests of any":         {func(e *contract.SecretEntry) { e.Methods = []string{"GET"} }, guard.SecretUse{Secret: "token", Rules: []contract.EgressRule{all}}, "denied"},
		"path, for requests of any":           {func(e *contract.SecretEntry) { e.Paths = []string{"/v1/**"} }, guard.SecretUse{Secret: "token", Rules: []contract.EgressRule{all}}, "denied"},
		"path, for requests of wider ones":    {func(e *contract.SecretEntry) { e.Paths = []string{"/v1/items/a*"} }, guard.SecretUse{Secret: "token", Rules: []contract.EgressRule{get}}, "denied"},
		"one of two rules":                    {func(e *contract.SecretEntry) { e.Methods = []string{"GET"} }, guard.SecretUse{Secret: "token", Rules: []contract.EgressRule{get, all}}, "denied"},
		"a pattern that the executor names":   {func(e *contract.SecretEntry) { e.Secret = "llm.openai" }, guard.SecretUse{Secret: "llm.*"}, "allowed e"},
		"a pattern within the entry's":        {func(e *contract.SecretEntry) { e.Secret = "ll*" }, guard.SecretUse{Secret: "llm.*"}, "allowed e"},
		"a pattern that matches none":         {func(e *contract.SecretEntry) { e.Secret = "mcp.x" }, guard.SecretUse{Secret: "llm.*"}, "no_match"},
		"a name that begins like the entry's": {func(e *contract.SecretEntry) { e.Secret = "llm" }, guard.SecretUse{Secret: "llm.*"}, "no_match"},
	} {
		l := &contract.SecretAccess{Default: contract.SecretDefaultDeny, Entries: []contract.SecretEntry{entry("e", c.list)}}
		f := &guard.Facts{Actor: "agent-1", Client: "cli", Tool: "crm.find", Now: noon}
		if got := found(guard.SecretEntries(l, f, &c.use)); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// found returns the result and the ids of the entries.
func found(fit []*contract.SecretEntry, result string) string {
	for _, e := range fit {
		result += " " + e.ID
	}
	return result
}

// TestSecretDefault shows that without a list, and for secrets that no list has named, the
// intent alone decides; that a secret that was named stays denied after its entries were
// withdrawn; that the principal on whose behalf a call is made needs an entry too; and which
// result several entries have.
func TestSecretDefault(t *testing.T) {
	f := guard.Facts{Actor: "agent-1", Client: "cli", Tool: "crm.find", Now: noon}
	use := func(name string) *guard.SecretUse { return &guard.SecretUse{Secret: name} }
	is := func(what string, fit []*contract.SecretEntry, result, want string) {
		t.Helper()
		if got := found(fit, result); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check := func(what string, l *contract.SecretAccess, f guard.Facts, name, want string) {
		t.Helper()
		fit, result := guard.SecretEntries(l, &f, use(name))
		is(what, fit, result, want)
	}
	check("no list", nil, f, "token", "allowed")
	l := &contract.SecretAccess{Default: contract.SecretDefaultIntent, Listed: []string{"crm.*", "token"}}
	check("not listed", l, f, "other", "allowed")
	check("the version before one that is not listed", l, f, "other.previous", "allowed")
	check("withdrawn", l, f, "token", "no_match")
	check("the version before a listed one", l, f, "token.previous", "no_match")
	check("what may be the name of a listed secret", l, f, "crm.previous", "no_match")
	check("listed by a prefix", l, f, "crm.key", "no_match")
	check("a pattern with listed secrets", l, f, "crm.*", "allowed")
	check("an unknown default", &contract.SecretAccess{Default: "open"}, f, "other", "no_match")
	l.Entries = []contract.SecretEntry{
		entry("old", func(e *contract.SecretEntry) { e.Expires = earlier }), entry("narrow", func(e *contract.SecretEntry) { e.Host = "x.example" }),
		entry("mine", func(e *contract.SecretEntry) { e.Subject = "agent-1" }), entry("too", nil),
	}
	check("several", l, f, "token", "allowed mine too")
	l.Entries = l.Entries[:2]
	check("one that expired and one that does not cover it", l, f, "token", "denied")
	l.Entries = []contract.SecretEntry{entry("mine", func(e *contract.SecretEntry) { e.Subject = "agent-1" })}
	f.OnBehalfOf = "ann"
	check("on behalf of another without an entry", l, f, "token", "no_match")
	l.Entries = append(l.Entries, entry("hers", func(e *contract.SecretEntry) { e.Subject = "ann" }))
	check("on behalf of another with an entry", l, f, "token", "allowed mine")
}

// TestSecretFacts checks the facts for a tool that uses three secrets, and that a use has all rules
// with its secret. It shows that a decision
// denies a call with a use that the list does not permit, and escalates a call with a use that
// the list permits with approval only.
func TestSecretFacts(t *testing.T) {
	tool := &contract.Tool{Kind: "tool.crm.find", Tool: "crm.find", Executor: "session-runner", Secrets: []contract.SecretGrant{{Name: "own"}, {Name: "llm.*"}},
		EgressRules: []contract.EgressRule{{Host: "a.example", Mode: contract.EgressTerminate, Credential: &contract.EgressCredential{Secret: "token", Header: "X"}}, {Host: "b.example", Mode: contract.EgressTerminate, Credential: &contract.EgressCredential{Secret: "token", Header: "X"}}}}
	f := guard.Facts{Actor: "agent-1", Client: "cli", Tool: "crm.find", Now: noon}
	facts := func(l *contract.SecretAccess) string {
		var out []string
		for _, x := range guard.SecretFacts(l, &f, tool) {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", x.Secret, x.Result, x.Entry)+map[bool]string{true: " approval"}[x.Approval]))
		}
		return strings.Join(out, ", ")
	}
	for want, entries := range map[string][]contract.SecretEntry{
		"own no_match, llm.* no_match, token no_match":           nil,
		"own allowed e, llm.* allowed e, token allowed e":        {entry("e", nil)},
		"own denied, llm.* denied, token denied":                 {entry("e", func(e *contract.SecretEntry) { e.Host = "a.example" })},
		"own no_match, llm.* no_match, token denied":             {entry("e", func(e *contract.SecretEntry) { e.Host, e.Secret = "a.example", "token" })},
		"own no_match, llm.* no_match, token allowed e":          {entry("e", func(e *contract.SecretEntry) { e.Host, e.Secret = "*.example", "token" })},
		"own allowed e approval, llm.* no_match, token no_match": {entry("e", func(e *contract.SecretEntry) { e.Secret, e.Approval = "own", true })},
		"own allowed f, llm.* no_match, token no_match":          {entry("e", func(e *contract.SecretEntry) { e.Secret, e.Approval = "own", true }), entry("f", func(e *contract.SecretEntry) { e.Secret = "own" })},
	} {
		if got := facts(&contract.SecretAccess{Default: contract.SecretDefaultDeny, Entries: entries}); got != want {
			t.Errorf("%s: %s", want, got)
		}
	}
	twice := guard.UsesOf([]contract.SecretGrant{{Name: "own"}}, rules{{Host: "a.example", Credential: &contract.EgressCredential{Secret: "a"}}, {Host: "none.example"},
		{Host: "b.example", Credential: &contract.EgressCredential{Secret: "b"}}, {Host: "c.example", Credential: &contract.EgressCredential{Secret: "b"}}})
	var hosts []string
	for _, u := range twice {
		hosts = append(hosts, u.Secret)
		for _, r := range u.Rules {
			hosts = append(hosts, r.Host)
		}
	}
	if got := strings.Join(hosts, " "); got != "own a a.example b b.example c.example" {
		t.Errorf("uses and their rules: %s", got)
	}
	if guard.SecretFacts(nil, &f, tool) != nil || guard.SecretFacts(&contract.SecretAccess{}, &f, nil) != nil {
		t.Error("facts without a list or a tool")
	}
	in := inputs()
	judge := func(results ...guard.SecretFact) string {
		in.Facts.SecretAccess = results
		v := guard.Judge(in)
		return v.Verdict + " " + v.Reason
	}
	ok := guard.SecretFact{Result: contract.AccessAllowed, Secret: "own"}
	if got := judge(ok); !strings.HasPrefix(got, contract.Allow) {
		t.Error(got)
	}
	for _, result := range []string{contract.AccessDenied, contract.AccessExpired, contract.AccessNoMatch, "", "ALLOWED"} {
		if got := judge(ok, guard.SecretFact{Result: result, Secret: "token"}); got != "DENY SECRET_ACCESS_DENIED" {
			t.Errorf("%q: %s", result, got)
		}
	}
	ok.Approval = true
	if got := judge(ok); got != "ESCALATE APPROVAL_REQUIRED" {
		t.Error(got)
	}
	in.Facts.Resolution, in.Facts.Approvals = contract.ResolvedGranted, []guard.ApprovalFact{{Approver: "bob", Roles: []string{guard.DefaultRole}, Vote: contract.Grant}}
	if got := judge(ok); got != "ALLOW APPROVED" {
		t.Error(got)
	}
}

// TestCheckSecretEntry shows that an invalid entry is rejected, that the error names the member,
// and that a name of 128 bytes is accepted.
func TestCheckSecretEntry(t *testing.T) {
	for want, change := range map[string]func(*contract.SecretEntry){
		"":          nil,
		"secret: ":  func(e *contract.SecretEntry) { e.Secret = "" },
		"subject: ": func(e *contract.SecretEntry) { e.Subject = "a*b" },
		"client: ":  func(e *contract.SecretEntry) { e.Client = "*x" },
		"tool: ":    func(e *contract.SecretEntry) { e.Tool = strings.Repeat("x", 129) },
		"max_uses":  func(e *contract.SecretEntry) { e.MaxUses = -1 },
		"host: ":    func(e *contract.SecretEntry) { e.Host = "https://x.example" },
		"methods: ": func(e *contract.SecretEntry) { e.Methods = []string{"get"} },
		"paths: ":   func(e *contract.SecretEntry) { e.Paths = []string{"v1"} },
		"expires: ": func(e *contract.SecretEntry) { e.Expires = "tomorrow" },
	} {
		e := entry("e", change)
		err := guard.CheckSecretEntry(&e)
		if (want == "") != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	longest := entry("e", func(e *contract.SecretEntry) { e.Tool = strings.Repeat("x", 128) })
	if err := guard.CheckSecretEntry(&longest); err != nil {
		t.Error("a name of the maximum length:", err)
	}
}

// TestApprovedCall shows that only an ALLOW because of votes or of a break-glass grant counts as
// approved.
func TestApprovedCall(t *testing.T) {
	for _, c := range []struct {
		verdict, reason string
		want            bool
	}{
		{contract.Allow, contract.ReasonApproved, true},
		{contract.Allow, contract.ReasonBreakGlass, true},
		{contract.Allow, "RULE", false},
		{contract.Deny, contract.ReasonApproved, false},
		{contract.Deny, contract.ReasonBreakGlass, false},
		{contract.Escalate, "RULE", false},
	} {
		if got := guard.ApprovedCall(&contract.Decision{Verdict: c.verdict, ReasonCode: c.reason}); got != c.want {
			t.Errorf("%s %s: %v", c.verdict, c.reason, got)
		}
	}
}
