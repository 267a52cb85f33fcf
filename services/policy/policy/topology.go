package policy

import (
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/budget"
)

// The work that policy consumes and the events that each instance reads, in addition to
// bus.ExecutorWork and bus.ExecutorControl. The filters are those of the consumers that are
// provisioned for policy.
var (
	decideWork = bus.Work{Name: "decide", Filters: bus.Filters("", contract.EventCallProposed), Ends: append(bus.Decisions(), bus.Filters(services.Policy, contract.EventEscalated)...), AckWait: 10 * time.Second, MaxAckPending: 4096}
	settleWork = bus.Work{Name: "settle", Filters: bus.Filters(services.Policy, contract.EventApprovalRecorded), Ends: bus.Decisions(), AckWait: 10 * time.Second, MaxAckPending: 256}

	stateReader  = bus.Reader{Name: "state", Stream: bus.Events, Filters: stateFilters()}
	startsReader = bus.Reader{Name: "starts", Stream: bus.Events, Filters: startsFilters(), Cover: bus.EveryEvent}
	budgetReader = bus.Reader{Name: "budget", Stream: bus.Events, Filters: budget.Filters}
)

// stateFilters returns the filters for the events that the view policy.state processes,
// and for the acknowledgements of freezes.
func stateFilters() []string {
	return slices.Concat(bus.Filters(services.Audit, contract.EventLedgerTruncated), bus.Filters(services.Provision, contract.EventKeyPublished, contract.EventLogEpochOpened, contract.EventCellOpened, contract.EventOperatorDelegated, contract.EventOperatorWithdrawn),
		bus.Filters(services.Policy, contract.EventTenantCreated, contract.EventTenantQuotaSet, contract.EventTenantResumed, contract.EventTenantSuspended),
		bus.Filters("", contract.EventFreezeAcknowledged), bus.Filters(services.LLMRouter, llmrouter.PricesPublishedName, llmrouter.DataAcceptedName),
		bus.Filters(services.Policy, contract.EventPolicyActivated, contract.EventEscalated, contract.EventApprovalRecorded,
			events.PrincipalRegisteredName, events.PrincipalSuspendedName, events.RoleGrantedName, events.RoleRevokedName,
			events.DelegationGrantedName, events.DelegationRevokedName, events.LimitsSetName, events.MeshFrozenName, events.MeshUnfrozenName,
			events.BreakGlassOpenedName, events.BreakGlassReviewedName, events.VirtualKeyCreatedName, events.VirtualKeyRevokedName,
			events.TokenRevokedName, events.PrincipalResumedName, events.VirtualKeyConsentedName, events.VirtualKeyConsentWithdrawnName,
			events.SessionGrantedName, events.SessionGrantRevokedName, events.LoginEndedName, events.MemberInvitedName, events.InvitationWithdrawnName,
			events.IdentityLinkedName, events.IdentityUnlinkedName, events.GroupMappedName, events.GroupUnmappedName, events.GroupsReportedName, events.SecretAccessSetName,
			contract.EventPasskeyRegistered, events.PasskeyRemovedName),
		catalog.Filters)
}

// startsFilters returns the filters for allowed calls, for the events that start or
// expire them, and for the outcomes that policy records.
func startsFilters() []string {
	f := slices.Concat(bus.Filters("", contract.EventEffectStarted), bus.Filters(services.Policy, contract.EventStartExpired, contract.EventEffectRecorded))
	for _, x := range services.Executors() {
		f = append(f, bus.AllowedFilter(x))
	}
	return f
}
