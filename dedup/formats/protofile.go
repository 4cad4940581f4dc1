package formats

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile/parser"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// protoFile returns the file that an import line calls name. text is the text of a .proto file, or a
// FileDescriptorProto in base64. protoFile leaves out everything that no value depends on, because a registry
// may have schemas that a compiler refuses for such parts, for example for options whose definition the
// registry does not have. implied are the entries of maps that the text writes as map<...>.
func protoFile(name, text string) (file *descriptorpb.FileDescriptorProto, implied map[protoreflect.FullName]bool, err error) {
	if file = descriptorIn(text); file == nil {
		handler := reporter.NewHandler(nil)
		tree, err := parser.Parse(name, strings.NewReader(text), handler)
		if err != nil {
			return nil, nil, err
		}
		parsed, err := parser.ResultFromAST(tree, false, handler)
		if err != nil {
			return nil, nil, err
		}
		file, implied = parsed.FileDescriptorProto(), map[protoreflect.FullName]bool{}
		addEntries(implied, protoreflect.FullName(file.GetPackage()), file.MessageType)
	}
	file.Name, file.Service, file.Extension = proto.String(name), nil, nil
	simplify(file.MessageType)
	keepOptions(file.ProtoReflect())
	return file, implied, nil
}

// addEntries adds the names of the messages that are entries of maps.
func addEntries(names map[protoreflect.FullName]bool, within protoreflect.FullName, messages []*descriptorpb.DescriptorProto) {
	for _, m := range messages {
		name := within.Append(protoreflect.Name(m.GetName()))
		if m.GetOptions().GetMapEntry() {
			names[name] = true
		}
		addEntries(names, name, m.NestedType)
	}
}

// descriptorIn returns the file that a text contains in base64; nil for the text of a .proto file.
func descriptorIn(text string) *descriptorpb.FileDescriptorProto {
	encoded, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(encoded) == 0 {
		return nil
	}
	file := new(descriptorpb.FileDescriptorProto)
	if proto.Unmarshal(encoded, file) != nil {
		return nil
	}
	return file
}

// simplify leaves out the extensions of messages, and sets the JSON names of fields: descriptors in generated
// code have no such names, and the compiler takes two empty names for a conflict. Any JSON names will do as
// long as they differ from each other, because nothing reads them: the paths of a route use the field names of
// the schema.
func simplify(messages []*descriptorpb.DescriptorProto) {
	for _, m := range messages {
		m.Extension = nil
		for _, f := range m.Field {
			f.JsonName = f.Name
		}
		for _, option := range m.GetOptions().GetUninterpretedOption() {
			if optionName(option) == "map_entry" { // Confluent's serialisers for Java write maps in this way
				m.Options.MapEntry = proto.Bool(option.GetIdentifierValue() == "true")
			}
		}
		simplify(m.NestedType)
	}
}

// keepOptions keeps only those options of a text without which the values would be read differently.
func keepOptions(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil || field.IsMap():
		case !field.IsList():
			keepOptions(value.Message())
		default:
			for i := range value.List().Len() {
				keepOptions(value.List().Get(i).Message())
			}
		}
		return true
	})
	type withOptions interface {
		GetUninterpretedOption() []*descriptorpb.UninterpretedOption
	}
	options, ok := m.Interface().(withOptions)
	if !ok {
		return
	}
	field := m.Descriptor().Fields().ByName("uninterpreted_option")
	kept := slices.DeleteFunc(options.GetUninterpretedOption(), func(o *descriptorpb.UninterpretedOption) bool {
		name := optionName(o)
		return name != "allow_alias" && !strings.HasPrefix(name, "features.")
	})
	list := m.Mutable(field).List()
	list.Truncate(0)
	for _, o := range kept {
		list.Append(protoreflect.ValueOfMessage(o.ProtoReflect()))
	}
}

// optionName returns the name of an option; "" if it is a custom one.
func optionName(o *descriptorpb.UninterpretedOption) string {
	var parts []string
	for _, part := range o.Name {
		if part.GetIsExtension() {
			return ""
		}
		parts = append(parts, part.GetNamePart())
	}
	return strings.Join(parts, ".")
}
