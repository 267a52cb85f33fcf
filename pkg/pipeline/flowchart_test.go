package pipeline

import "testing"

// TestFlowchart checks the flowchart of a document, and that of a run: the status and the
// duration of each step, and the number of its calls if there are several.
func TestFlowchart(t *testing.T) {
	doc, err := Parse([]byte(`{"name":"x","steps":[{"id":"a","pack":"p"},{"id":"end","pack":"q","needs":["a"]},{"id":"c","approval":"Go on?","needs":["a","end"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	nodes := doc.Nodes()
	const edges = "  n0 --> n1\n  n0 --> n2\n  n1 --> n2\n"
	if got, want := Flowchart(nodes), "flowchart TD\n  n0[\"a<br/>p\"]\n  n1[\"end<br/>q\"]\n  n2[\"c<br/>"+ApprovalPack+"\"]\n"+edges; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	nodes[0].Status, nodes[0].Started, nodes[0].Ended, nodes[0].Calls = "succeeded", "2026-11-28T10:00:00.500Z", "2026-11-28T10:01:00Z", 1
	nodes[1].Status, nodes[1].Started, nodes[1].Calls = "running", "2026-11-28T10:01:00Z", 2
	nodes[2].Status = "pending"
	if got, want := Flowchart(nodes), "flowchart TD\n  n0[\"a<br/>p<br/>succeeded 59.5s\"]\n  n1[\"end<br/>q<br/>running<br/>2 calls\"]\n  n2[\"c<br/>"+ApprovalPack+"<br/>pending\"]\n"+edges; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
