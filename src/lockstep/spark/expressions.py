"""Which of Spark's expressions and operators give equal results on all sites: the tables that the guard reads.

Spark's own `Expression.deterministic` is the wrong test (design rule 9): it is true for `current_timestamp`, for
Python UDFs, for `collect_list` and for sums of doubles. So every class is named here, by its simple name as it
stands in an analyzed plan; one that is not named is refused. Made from Spark 4.3's function registry.
"""

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PURE: Final = _names(
    """
    With CommonExpressionDef CommonExpressionRef
    Alias AttributeReference Literal OuterReference Cast KnownNullable KnownNotNull
    PreciseTimestampConversion AggregateExpression LambdaFunction NamedLambdaVariable SortOrder
    GetStructField GetArrayStructFields GetArrayItem GetMapValue StaticInvoke Invoke TimeAdd
    DateAddInterval TimestampAddInterval SubtractTimestamps SubtractDates TimestampAdd TimestampDiff
    MultiScalarSubquery DropField WithField UpdateFields NamedArgument StringDecode DatetimeSub
    TryEval MultiLikeBase LikeAll LikeAny NotLikeAll NotLikeAny InSet UpCast MakeDecimal
    CheckOverflow PromotePrecision UnscaledValue NormalizeNaNAndZero ToPrettyString Collate
    ResolvedCollation

    Abs Acos Acosh Add AddMonths AesDecrypt And ArrayAggregate ArrayAppend ArrayCompact
    ArrayContains ArrayDistinct ArrayExcept ArrayExists ArrayFilter ArrayForAll ArrayInsert
    ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition ArrayPrepend ArrayRemove ArrayRepeat
    ArraySize ArraySort ArrayTransform ArrayUnion ArraysOverlap ArraysZip Ascii Asin Asinh
    AssertTrue Atan Atan2 Atanh BRound Base32 Base64 Between Bin BitLength BitmapBitPosition
    BitmapBucketNumber BitmapCount BitwiseAnd BitwiseCount BitwiseGet BitwiseNot BitwiseOr
    BitwiseXor CaseWhen Cbrt Ceil RoundCeil Chr Coalesce Collation Concat ConcatWs Contains Conv
    ConvertTimezone Cos Cosh Cot Crc32 CreateArray CreateMap CreateNamedStruct Csc CsvToStructs
    DateAdd DateDiff DateFormatClass DateFromUnixDate DatePart DateSub DayName DayOfMonth DayOfWeek
    DayOfYear Decode Divide ElementAt Elt Encode EndsWith EqualNull EqualNullSafe EqualTo
    EulerNumber Exp Explode Expm1 Extract Factorial FindInSet Flatten Floor RoundFloor FormatNumber
    FormatString FromAvro FromProtobuf FromUTCTimestamp FromUnixTime Get GetJsonObject GreaterThan
    GreaterThanOrEqual Greatest Hex Hmac Hour HoursOfTime Hypot ILike If In InitCap Inline
    IntegralDivide IsNaN IsNotNull IsNull IsValidUTF8 JaroWinkler JsonObjectKeys JsonToStructs
    JsonTuple LastDay Least Left Length LengthOfJsonArray LessThan LessThanOrEqual Levenshtein Like
    Log Log10 Log1p Log2 Logarithm Lower Luhncheck MakeDTInterval MakeDate MakeInterval MakeTime
    MakeTimestamp MakeValidUTF8 MakeYMInterval MapConcat MapContainsKey MapEntries MapFilter
    MapFromArrays MapFromEntries MapKeys MapValues MapZipWith Mask Md5 MicrosToTimestamp
    MillisToTimestamp Minute MinutesOfTime Month MonthName MonthsBetween Multiply Murmur3Hash NaNvl
    NanosToTimestamp NextDay Not NullIf NullIfZero Nvl Nvl2 OctetLength Or Overlay ParseJson
    ParseToDate ParseToTimestamp ParseToTimestampLTZ ParseToTimestampNTZ ParseUrl Pi Pmod PosExplode
    Pow Quarter Quote RLike RaiseError RegExpCount RegExpExtract RegExpExtractAll RegExpInStr
    RegExpReplace RegExpSubStr Remainder Reverse Right Rint Round Sec Second SecondWithFraction
    SecondsOfTime SecondsOfTimeWithFraction SecondsToTimestamp Sentences Sequence SessionWindow Sha1
    Sha2 ShiftLeft ShiftRight ShiftRightUnsigned Signum Sin Sinh Size Slice SortArray SoundEx
    SplitPart Sqrt Stack StartsWith StringInstr StringLocate StringLPad StringRPad StringRepeat
    StringReplace StringSpace StringSplit StringToMap StringTranslate StringTrim StringTrimBoth
    StringTrimLeft StringTrimRight StructsToCsv StructsToJson StructsToXml Substring SubstringIndex
    Subtract Tan Tanh TimeDiff TimeTrunc TimeWindow ToAvro ToBinary ToCharacter ToDegrees ToNumber
    ToProtobuf ToRadians ToTime ToUTCTimestamp ToUnixTimestamp TransformKeys TransformValues
    TruncDate TruncTimestamp TryAdd TryAesDecrypt TryDivide TryElementAt TryMod TryMultiply
    TrySubtract TryToBinary TryToNumber TryUrlDecode TryValidateUTF8 TypeOf UnBase32 UnBase64
    UnaryMinus UnaryPositive Unhex UnixDate UnixMicros UnixMillis UnixNanos UnixSeconds
    UnixTimestamp Upper UrlDecode UrlEncode ValidateUTF8 WeekDay WeekOfYear WidthBucket WindowTime
    XmlToStructs XxHash64 Year ZeroIfNull ZipWith IsValidVariant IsVariantNull VariantGet
    SchemaOfVariant ToVariantObject XPathBoolean XPathDouble XPathFloat XPathInt XPathList XPathLong
    XPathShort XPathString

    BitAndAgg BitOrAgg BitXorAgg BoolAnd BoolOr Count CountIf Max Min HyperLogLogPlusPlus
    BitmapConstructAgg BitmapOrAgg BitmapAndAgg RegrCount
    """
)
"""The same result wherever and whenever they run, in whatever order the rows come."""

CLOCK_OR_CHANCE: Final = {
    **dict.fromkeys(
        _names("CurrentTimestamp CurrentTimestampLike Now LocalTimestamp CurrentDate CurrentTime"),
        ("reads the clock, which differs between sites", "use the record's own `timestamp` column"),
    ),
    **dict.fromkeys(
        _names("Rand Randn RandStr Uniform Uuid Shuffle AesEncrypt"),
        (
            "draws random values, which differ between sites",
            "derive the value from the record, e.g. xxhash64(key, _sn)",
        ),
    ),
    **dict.fromkeys(
        _names("MonotonicallyIncreasingID SparkPartitionID"),
        ("depends on how Spark cut the batch", "use `_sn`, the record's number in its shard's order"),
    ),
    **dict.fromkeys(
        _names(
            "InputFileName InputFileBlockStart InputFileBlockLength CurrentUser CurrentTimeZone SparkVersion"
        ),
        ("depends on the site", "give the value as a literal"),
    ),
    **dict.fromkeys(
        _names("CallMethodViaReflection TryReflect ScalaUDF ScalaAggregator"),
        (
            "runs code that nobody has vouched for",
            "if it is a pure function of its arguments, allow it by name",
        ),
    ),
}
"""Never the same on two sites: (why, what to do instead)."""

ORDER_SENSITIVE: Final = _names(
    """
    First Last AnyValue CollectList ListAgg NthValue ApproximatePercentile HistogramNumeric
    ApproxTopK Mode CountMinSketchAgg
    """
)
"""Aggregates that see in which order rows come. In real time a key's rows come in its shard's order."""

TIES: Final = frozenset(("MaxBy", "MinBy"))
"""Decided by order where the ordering value is equal; never when it is `_sn`."""

FLOATING: Final = _names(
    """
    Sum Average TrySum Corr CovPopulation CovSample Kurtosis Skewness StddevPop StddevSamp
    VariancePop VarianceSamp RegrAvgX RegrAvgY RegrIntercept RegrR2 RegrSXX RegrSXY RegrSYY
    RegrSlope RegrReplacement VectorSum VectorAvg Percentile Median
    """
)
"""Exact on integers and decimals; on floating-point numbers the sum depends on the order of the terms."""

EXACT_IF_EXACT: Final = frozenset(("Sum", "Average", "TrySum"))
"""Of `FLOATING`: exact when their input is; the others compute in doubles whatever they get."""

UNORDERED_SET: Final = frozenset(("CollectSet", "CollectUnion"))
ORDER_REMOVERS: Final = _names(
    "SortArray ArraySort Size ArraySize ArrayMax ArrayMin ArrayContains ArraysOverlap"
)
"""What makes the order of an array's elements not matter."""

PYTHON_CODE: Final = frozenset(("PythonUDF", "PythonUDAF", "PythonUDTF"))

INJECTIVE: Final = frozenset(
    ("Alias", "AttributeReference", "Cast", "Decode", "StringDecode", "StaticInvoke", "Hex", "Base64")
)
"""Keep different message keys different, so that grouping by them keeps a key in one shard."""

REALTIME_OPERATORS: Final = _names(
    """
    Project Filter SubqueryAlias View Generate Expand Aggregate Deduplicate LocalRelation LogicalRDD
    OneRowRelation StreamingRelationV2 StreamingDataSourceV2Relation ResolvedHint WithCTE
    CTERelationDef CTERelationRef
    """
)
MICROBATCH_OPERATORS: Final = REALTIME_OPERATORS | _names(
    """
    Join Union Distinct EventTimeWatermark UpdateEventTimeWatermarkColumn DeduplicateWithinWatermark
    RepartitionByExpression RebalancePartitions Repartition Sort MapInPandas MapInArrow
    PythonMapInArrow FlatMapGroupsInPandas FlatMapGroupsInArrow FlatMapGroupsInPandasWithState
    FlatMapCoGroupsInPandas TransformWithStateInPySpark TransformWithStateInPandas ArrowEvalPython
    BatchEvalPython Range
    """
)
SHUFFLING: Final = frozenset(("Aggregate", "Deduplicate"))
STATIC_TABLES: Final = frozenset(
    ("LogicalRelation", "DataSourceV2Relation", "HiveTableRelation", "InMemoryRelation")
)
