// Command clients uses a mesh by a client that oapi-codegen has generated. It exits with
// an error at the first answer that is not as expected. TestClients builds and runs it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"

	"clients/client"
)

var ctx = context.Background()

// bearer returns a client that sends a token.
func bearer(token string) *client.ClientWithResponses {
	c, err := client.NewClientWithResponses(os.Getenv("URL"), client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+token)
		return nil
	}))
	must(err == nil, "client: ", err)
	return c
}

func must(ok bool, what ...any) {
	if !ok {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

// try ends the program if an operation failed.
func try[T any](r T, err error) T {
	must(err == nil, err)
	return r
}

func main() {
	c, approver := bearer(os.Getenv("TOKEN")), bearer(os.Getenv("APPROVER"))
	session, async := "s-go-client", "respond-async"
	params := &client.CreateCallParams{XBinnacleSession: &session}

	version := try(c.GetVersionWithResponse(ctx))
	must(version.JSON200 != nil && version.JSON200.GoVersion != "", "version:", string(version.Body))

	// A call, and its state.
	made := try(c.CreateCallWithResponse(ctx, params, client.CallRequest{Kind: "tool.cmd.upper", Args: &client.Args{"text": "ahoy"}}))
	must(made.JSON200 != nil, "call:", string(made.Body))
	text, _ := made.JSON200.Output.(map[string]any)["text"].(string)
	must(text == "AHOY" && made.JSON200.SessionId != "" && *made.JSON200.Session == session, "call:", string(made.Body))
	must(*made.Headers200.XBinnacleVerdict == "ALLOW", "header:", made.HTTPResponse.Header)
	state := try(c.GetCallWithResponse(ctx, made.JSON200.CallId))
	must(state.JSON200 != nil && state.JSON200.Status == client.CallStateStatusSucceeded && *state.JSON200.Verdict == client.CallStateVerdictALLOW && *state.JSON200.ReceiptId == made.JSON200.ReceiptId, "state:", string(state.Body))
	run := try(c.RunPackWithResponse(ctx, "cmd.upper", &client.RunPackParams{XBinnacleSession: &session}, client.Args{"text": "b"}))
	must(run.JSON200 != nil, "pack:", string(run.Body))
	packs := try(c.ListPacksWithResponse(ctx))
	must(packs.JSON200 != nil && len(*packs.JSON200) > 0 && (*packs.JSON200)[0].InputSchema != nil, "packs:", string(packs.Body))

	// Errors have types.
	wrong := try(c.CreateCallWithResponse(ctx, params, client.CallRequest{Kind: "tool.cmd.upper", Args: &client.Args{"text": 5}}))
	must(wrong.JSON400 != nil && *wrong.JSON400.Error.Pointer == "/args/text" && *wrong.JSON400.Error.ReasonCode == "SCHEMA_VIOLATION" && *wrong.JSON400.Error.ReceiptId != "", "wrong args:", string(wrong.Body))
	denied := try(c.RunPackWithResponse(ctx, "no-such", nil, client.Args{}))
	must(denied.JSON403 != nil && *denied.JSON403.Error.ReasonCode == "UNKNOWN_TOOL", "unknown tool:", string(denied.Body))
	unknown := try(bearer("nonsense").ListKeysWithResponse(ctx))
	must(unknown.JSON401 != nil && unknown.JSON401.Error.Type == "authentication_error", "no token:", string(unknown.Body))

	// Keys.
	tags := []string{"go"}
	key := try(c.CreateKeyWithResponse(ctx, nil, client.KeyRequest{Id: "go-client", Scopes: &[]client.KeyRequestScopes{client.KeyRequestScopesLlmCall}, Tags: &tags}))
	must(key.JSON200 != nil && key.JSON200.Key != "", "key:", string(key.Body))
	keys := try(c.ListKeysWithResponse(ctx))
	must(keys.JSON200 != nil && len(*keys.JSON200) > 0 && (*keys.JSON200)[0].Digest != "", "keys:", string(keys.Body))

	// A call that waits for people.
	waits := try(c.CreateCallWithResponse(ctx, &client.CreateCallParams{Prefer: &async}, client.CallRequest{Kind: "policy.register_principal", Args: &client.Args{"principal": "go-client", "type": "person"}}))
	must(waits.JSON202 != nil && waits.JSON202.Status == client.CallStateStatusPendingApproval && waits.JSON202.Expires.Year() > 2000, "waits:", string(waits.Body))
	list := try(approver.ListApprovalsWithResponse(ctx))
	must(list.JSON200 != nil && len(*list.JSON200) == 1 && (*list.JSON200)[0].CallId == waits.JSON202.CallId, "approvals:", string(list.Body))
	one := try(approver.GetApprovalWithResponse(ctx, waits.JSON202.CallId))
	must(one.JSON200 != nil && (*one.JSON200.Args)["principal"] == "go-client", "approval:", string(one.Body))
	vote := try(approver.VoteWithResponse(ctx, waits.JSON202.CallId, nil, client.VoteRequest{Vote: client.VoteRequestVoteGrant, Reason: "by a generated client"}))
	must(vote.JSON200 != nil, "vote:", string(vote.Body))

	// The ledger.
	receipts := try(c.ListSessionReceiptsWithResponse(ctx, session, nil))
	must(receipts.JSON200 != nil && len(*receipts.JSON200) == 3 && (*receipts.JSON200)[0].CallId == made.JSON200.CallId, "receipts:", string(receipts.Body))
	receipt := try(c.GetReceiptWithResponse(ctx, (*receipts.JSON200)[1].Prev))
	must(receipt.JSON200 != nil && receipt.JSON200.Id == made.JSON200.ReceiptId, "receipt:", string(receipt.Body))
	lines := try(c.ListReceiptsWithResponse(ctx, &client.ListReceiptsParams{Session: &session}))
	var last client.Receipt
	for line := range strings.Lines(string(lines.Body)) {
		must(json.Unmarshal([]byte(line), &last) == nil, "line:", line)
	}
	must(last.Index == 3 && last.Status == client.ReceiptStatusDenied, "lines:", string(lines.Body))
	pack := try(c.GetEvidenceWithResponse(ctx, session, nil))
	must(pack.HTTPResponse.StatusCode == 200, "evidence:", string(pack.Body))
	verified := try(c.VerifyEvidenceWithBodyWithResponse(ctx, nil, "application/x-tar", bytes.NewReader(pack.Body)))
	must(verified.JSON200 != nil && verified.JSON200.Verdict == "PASS" && verified.JSON200.Report.Receipts == 3, "verification:", string(verified.Body))

	// What governs.
	policies := try(c.ListPoliciesWithResponse(ctx))
	must(policies.JSON200 != nil && len(*policies.JSON200) > 1 && (*policies.JSON200)[0].Layer == "p0" && len(*(*policies.JSON200)[0].Body) > 100, "policies:", string(policies.Body))
	limits := try(c.GetLimitsWithResponse(ctx))
	must(limits.JSON200 != nil && limits.JSON200.Limits != nil, "limits:", string(limits.Body))
	trust := try(c.ListTrustKeysWithResponse(ctx, nil))
	must(trust.JSON200 != nil && len(*trust.JSON200) > 3, "trust:", string(trust.Body))
	fmt.Println("go client: done")
}
