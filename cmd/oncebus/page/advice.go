package page

// advice says what an operator can do about a line of the log, and which section of the documentation says more
// about it.
type advice struct{ do, page string }

// advices has the advice for a line of the log, by the text of the line. A test checks that the code logs these
// texts and that the pages have these sections.
var advices = map[string]advice{
	"no broker responds": {
		"Check the brokers, the network and ONCEBUS_BROKERS. Events wait in Kafka; the process goes on by itself.", "METRICS.md#oncebuskafkaunavailable"},
	"setup failed, retrying": {
		"Run oncebus doctor with the same settings: it names what is missing.", "OPERATIONS.md#doctor"},
	"tasks paused: disk space is low": {
		"Free space on the disk of ONCEBUS_STATE_DIR, or give it more. The tasks go on by themselves.", "OPERATIONS.md#a-disk-that-fills"},
	"restore stalled": {
		"Find the open transaction that the line names. Its producer ends it, or you abort it.", "OPERATIONS.md#a-stalled-restore"},
	"restore failed, retrying": {
		"Nothing yet: it is tried again. If it lasts, the error names the broker's answer.", "OPERATIONS.md#a-stalled-restore"},
	"partition refused, waiting for a decision": {
		"Decide with the command that the line shows. Nothing of the partition is processed until then.", "OPERATIONS.md#lost-rows-records-or-offsets"},
	"local store quarantined": {
		"Look at the disk. The store is rebuilt from the changelog.", "OPERATIONS.md#local-state"},
	"local store out of use: too many rebuilds": {
		"Replace the disk, then restart the process.", "OPERATIONS.md#local-state"},
	"local state cannot be used: forwarding events unchecked": {
		"Look at the disk. Events of routes that fail open are forwarded unchecked until the store works.", "METRICS.md#oncebuseventsunchecked"},
	"record of an unknown route, task waits": {
		"Restart this process with the routes file that has the route.", "OPERATIONS.md#change-routes"},
	"topic refused records, dead-lettered them": {
		"Compare the topic's limits with the example. Its dead letters have the broker's error.", "METRICS.md#oncebusrecordsrefused"},
	"transaction timed out, the next one has fewer records: if it has 1 record already, raise ONCEBUS_TRANSACTION_TIMEOUT": {
		"Look for a slow broker or a slow disk.", "METRICS.md#oncebustransactionstimeout"},
	"batch is damaged, or decompresses to too many bytes: skipped": {
		"Find the producer of the batch, or raise ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES.", ""},
	"lease expired without an outcome, dispatching again: executor died, or lease too short": {
		"Look at the executors, or give the route a longer lease.", "METRICS.md#oncebusleaseexpirations"},
	"requests answered without an outcome": {
		"Look at the executors: they produced no outcome in time.", "METRICS.md#oncebusrequestsunanswered"},
	"fenced by another process of the same name: give each process its own ONCEBUS_INSTANCE_ID": {
		"Two processes have one name. Give each its own.", "OPERATIONS.md#scale"},
	"broker time changed by a step: the machine was suspended, or a clock was set; leases begin again": {
		"Synchronise the clocks of the brokers and of this machine.", "OPERATIONS.md#clocks"},
	"many partitions: each costs the brokers time at every commit, and its owner a store": {
		"Use fewer partitions for the next app.", "OPERATIONS.md#scale"},
	"start check": {
		"Do what the line says; oncebus doctor checks it again.", "OPERATIONS.md#doctor"},
	"stopped with unknown commit outcome": {
		"Nothing: the task reads its changelog, which shows whether the commit counts.", ""},
	"building a new client": {
		"Nothing: the process replaces a client after an error. If it repeats, look at the brokers.", ""},
	"unknown setting ignored": {
		"Correct or remove the variable.", ""},
	"certificates reload failed": {
		"Replace the files by a matching pair. The old certificate stays in use until it expires.", "SECURITY.md"},
	"secret reload failed": {
		"Write the secret's file again. The old secret stays in use.", "SECURITY.md"},
	"token request failed": {
		"Look at the token endpoint. The current token stays in use until it expires.", "SECURITY.md"},
}
