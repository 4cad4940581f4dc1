package proxy

import (
	"reflect"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrorOf returns the first error in a response, in the order of its fields, or nil.
func ErrorOf(resp kmsg.Response) error {
	var first int16
	eachErrorCode(reflect.ValueOf(resp).Elem(), func(code reflect.Value) {
		if first == 0 {
			first = int16(code.Int())
		}
	})
	return kerr.ErrorForCode(first)
}

// NoOffsets is a [Rule.Patch] for OffsetFetch. It changes the response so that the consumer group seems to have no
// committed offsets.
func NoOffsets(resp kmsg.Response) {
	fetch, ok := resp.(*kmsg.OffsetFetchResponse)
	if !ok {
		return
	}
	for i := range fetch.Topics {
		for j := range fetch.Topics[i].Partitions {
			p := &fetch.Topics[i].Partitions[j]
			p.Offset, p.LeaderEpoch, p.Metadata = -1, -1, kmsg.StringPtr("")
		}
	}
	for g := range fetch.Groups {
		for i := range fetch.Groups[g].Topics {
			for j := range fetch.Groups[g].Topics[i].Partitions {
				p := &fetch.Groups[g].Topics[i].Partitions[j]
				p.Offset, p.LeaderEpoch, p.Metadata = -1, -1, kmsg.StringPtr("")
			}
		}
	}
}

// setError sets every error code of a response to err.
func setError(resp kmsg.Response, err *kerr.Error) {
	eachErrorCode(reflect.ValueOf(resp).Elem(), func(code reflect.Value) { code.SetInt(int64(err.Code)) })
}

// eachErrorCode visits every field named ErrorCode of a response, at every depth. kmsg uses that name in every API.
func eachErrorCode(v reflect.Value, visit func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); !field.IsExported() {
				continue
			} else if field.Name == "ErrorCode" && field.Type.Kind() == reflect.Int16 {
				visit(v.Field(i))
			} else {
				eachErrorCode(v.Field(i), visit)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			eachErrorCode(v.Elem(), visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachErrorCode(v.Index(i), visit)
		}
	}
}

// refusal returns the response of a node that rejects req with err: the response repeats the request's topics,
// partitions, groups and keys, and each of them has the error.
func refusal(req kmsg.Request, err *kerr.Error) kmsg.Response {
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	setDefaults(reflect.ValueOf(resp))
	mirror(reflect.ValueOf(resp).Elem(), reflect.ValueOf(req).Elem())
	if find, ok := req.(*kmsg.FindCoordinatorRequest); ok {
		coordinators := resp.(*kmsg.FindCoordinatorResponse)
		for _, key := range find.CoordinatorKeys {
			c := kmsg.NewFindCoordinatorResponseCoordinator()
			c.Key, c.NodeID, c.Port = key, -1, -1
			coordinators.Coordinators = append(coordinators.Coordinators, c)
		}
	}
	setError(resp, err)
	return resp
}

// setDefaults calls the method Default, which kmsg generates for every struct of the protocol.
func setDefaults(pointer reflect.Value) {
	if d, ok := pointer.Interface().(interface{ Default() }); ok {
		d.Default()
	}
}

// mirror copies the fields that a response repeats from its request: fields with the same name and type, and lists
// with the same name, entry by entry. Where the request has a plain list of partition numbers, the response has a
// list of structs, so mirror fills the number into each struct.
func mirror(dst, src reflect.Value) {
	for i := range dst.NumField() {
		name, to := dst.Type().Field(i).Name, dst.Field(i)
		from := src.FieldByName(name)
		if !from.IsValid() || !to.CanSet() || name == "UnknownTags" || name == "Version" {
			continue
		}
		if from.Type() == to.Type() {
			to.Set(from)
			continue
		}
		if from.Kind() != reflect.Slice || to.Kind() != reflect.Slice || to.Type().Elem().Kind() != reflect.Struct {
			continue
		}
		to.Set(reflect.MakeSlice(to.Type(), from.Len(), from.Len()))
		for j := range from.Len() {
			setDefaults(to.Index(j).Addr())
			if entry := from.Index(j); entry.Kind() == reflect.Struct {
				mirror(to.Index(j), entry)
			} else if field := to.Index(j).FieldByName("Partition"); name == "Partitions" && field.IsValid() && field.Type() == entry.Type() {
				field.Set(entry)
			}
		}
	}
}
